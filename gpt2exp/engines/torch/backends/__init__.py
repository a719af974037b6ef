"""Where the PyTorch engine runs."""
