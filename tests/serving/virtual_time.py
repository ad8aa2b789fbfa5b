"""An event loop whose time is virtual: where it would wait, its clock jumps to the next timer.

So code that uses `asyncio.sleep` and the loop's clock runs unchanged, and a day of requests takes seconds.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Never waits: what it was asked to wait is added to the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            return super().select(None)  # another thread is at work
        if timeout > 0:
            self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._virtual.now_s

    def skip(self, seconds: float) -> None:
        """Let time pass while the loop is held."""
        self._virtual.now_s += seconds


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
