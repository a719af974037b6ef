"""Protocols read and judged: pairs, statistics, curves, tables, figures, one page."""
