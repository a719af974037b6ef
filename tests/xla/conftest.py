"""Four virtual devices for every test of this folder; nothing is collected where torch_xla is not installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

INSTALLED = importlib.util.find_spec("torch_xla") is not None
collect_ignore_glob = [] if INSTALLED else ["test_*.py"]

if INSTALLED:
    os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.path.insert(0, str(Path(__file__).parent.parent / "engines"))
