"""Trace a job when it becomes slower. In: a finding that begins. Out: a folder of traces, some times at most.

A trace costs the job some seconds, so there are at most `MOST_RECORDINGS` of them, at least `LEAST_APART_S` apart.
Nothing is traced for stopped processes, which make no steps, nor for growing memory, which a trace does not show.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from flatout.errors import FlatoutError
from flatout.records.watch import LiveFinding, Recorded
from flatout.watch.jobs import RunningJob
from flatout.watch.record import record_steps

MOST_RECORDINGS = 3
LEAST_APART_S = 600.0
_NOT_TRACED = ("stopped", "memory")


class AutoRecorder:
    """Records at the beginnings of slowdowns of one job, each to a new folder below `folder`."""

    def __init__(
        self,
        job: RunningJob,
        num_steps: int,
        folder: Path,
        *,
        record: Callable[[RunningJob, int, Path], Recorded] = record_steps,
    ) -> None:
        self._job = job
        self._num_steps = num_steps
        self._folder = folder
        self._record = record
        self._num_done = 0
        self._next_s = 0.0

    def on_news(self, finding: LiveFinding, now_s: float | None = None) -> Recorded | FlatoutError | None:
        """Record if this finding begins a slowdown, within the bounds. Return the traces, or why there are none."""
        now_s = time.monotonic() if now_s is None else now_s
        is_slowdown = finding.last_step is None and finding.cause not in _NOT_TRACED
        if not is_slowdown or self._num_done >= MOST_RECORDINGS or now_s < self._next_s:
            return None
        self._num_done += 1
        self._next_s = now_s + LEAST_APART_S
        try:
            return self._record(self._job, self._num_steps, self._folder / f"step-{finding.first_step}")
        except FlatoutError as error:
            return error
