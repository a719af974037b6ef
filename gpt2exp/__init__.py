"""Controlled optimizer experiments on an unmodified GPT-2."""

__version__ = "0.1.0"
