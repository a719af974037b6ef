"""A replayed training step on DuckDB against a rewritten one."""

from __future__ import annotations

from sql_replay import row

ROW = row("duckdb")
