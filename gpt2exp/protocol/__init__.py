"""Planned comparisons: what runs there will be, checked before the first one starts."""
