"""Tests of the SQL engine need its extra, and helpers of other folders."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
