"""The GPT, its optimizers and its schedule as SQL: tables, joins and aggregates on DuckDB or DataFusion."""
