"""The training loop and what it calls: evaluation, checkpoints, sampling, progress."""
