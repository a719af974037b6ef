"""All runs below some folders as tables of an in-memory DuckDB that only answers questions."""
