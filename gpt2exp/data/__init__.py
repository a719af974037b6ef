"""Corpora as memory-mapped token streams, and which tokens make up each step."""
