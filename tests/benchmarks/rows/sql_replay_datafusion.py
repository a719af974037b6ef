"""A replayed training step on DataFusion against a rewritten one."""

from __future__ import annotations

from sql_replay import row

ROW = row("datafusion")
