"""Executors of the training step behind one small protocol."""
