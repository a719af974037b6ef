"""Ctrl-C once asks for a clean stop; twice stops at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class StopRequest:
    """Set by the first signal; the loop looks at it between steps."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Signal handler: the second signal raises KeyboardInterrupt wherever the program is."""
        if self.reason is not None:
            raise KeyboardInterrupt
        self.reason = f"signal {signal.Signals(number).name}"


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Route SIGINT and SIGTERM into a `StopRequest`; only the main thread of a process may."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before: dict[signal.Signals, Any] = {number: signal.signal(number, request.handle) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
