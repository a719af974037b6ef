"""Trying a run out on its machine before it starts: checks, what memory it needs, and the stamp that remembers it."""
