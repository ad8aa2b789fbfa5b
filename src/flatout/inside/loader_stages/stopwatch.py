"""Time nested stages exclusively: while an inner stage runs, the outer one stands still.

In: the beginning and the end of each stage, on one thread. Out: for each stage, its calls, its seconds, and its seconds
of CPU time. The seconds of all stages add up to those between `begin` and `finish`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import get_ident
from typing import Any

_now = time.perf_counter
_cpu_now = time.thread_time


class StageTime:
    """The time of one stage so far."""

    __slots__ = ("cpu_s", "num_calls", "wall_s")

    def __init__(self) -> None:
        self.num_calls = 0
        self.wall_s = 0.0
        self.cpu_s = 0.0


class Stopwatch:
    """The stages of one thread, between `begin` and `finish`; `enter` and `leave` are called only there."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all times."""
        self.times: dict[str, StageTime] = {}
        self.num_entries = 0
        self._thread = 0  # the thread whose stages are timed; 0: none
        self._open: list[str] = []
        self._since = self._cpu_since = 0.0

    def runs_here(self) -> bool:
        """Whether the stages of this thread are timed now."""
        return self._thread != 0 and self._thread == get_ident()

    def begin(self, stage: str) -> None:
        """Start, in `stage`: the one in which time is spent that belongs to no other."""
        self._open = []
        self._thread = get_ident()
        self._since, self._cpu_since = _now(), _cpu_now()
        self.enter(stage)

    def finish(self) -> None:
        """Stop; stages that an exception has left open are closed."""
        while self._open:
            self.leave()
        self._thread = 0

    @property
    def stage(self) -> str:
        """Return the innermost stage that is open, on the timed thread."""
        return self._open[-1]

    @property
    def open_stage(self) -> str | None:
        """Return the innermost stage that is open, on any thread; None while nothing is timed."""
        stages = self._open
        return stages[-1] if self._thread and stages else None

    def enter(self, stage: str) -> None:
        self._book()
        self._open.append(stage)
        self._time_of(stage).num_calls += 1
        self.num_entries += 1

    def leave(self) -> None:
        self._book()
        self._open.pop()

    def _book(self) -> None:
        """Add the time since the last change of stage to the innermost stage."""
        now, cpu_now = _now(), _cpu_now()
        if self._open:
            spent = self._time_of(self._open[-1])
            spent.wall_s += now - self._since
            spent.cpu_s += cpu_now - self._cpu_since
        self._since, self._cpu_since = now, cpu_now

    def _time_of(self, stage: str) -> StageTime:
        time_of_stage = self.times.get(stage)
        if time_of_stage is None:
            time_of_stage = self.times[stage] = StageTime()
        return time_of_stage


STOPWATCH = Stopwatch()  # of the thread that makes batches in this process


def timed(stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, whose calls on the timed thread are a stage; a stage within itself is not opened again."""

    def in_stage(*args: Any, **kwargs: Any) -> Any:
        if not STOPWATCH.runs_here() or STOPWATCH.stage == stage:
            return function(*args, **kwargs)
        STOPWATCH.enter(stage)
        try:
            return function(*args, **kwargs)
        finally:
            STOPWATCH.leave()

    return in_stage
