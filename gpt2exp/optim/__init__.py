"""Optimizers: one file each, found by the registry; torch is imported only inside functions."""
