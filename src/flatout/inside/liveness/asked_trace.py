"""Trace a few steps of a running job when somebody asks for it, on all ranks from the same step.

In: a file in the folder of heartbeats, which names the first step, the number of steps and a folder; and the steps as
they end. Out: `rankN.json` there, or `failed-rankN` with the reason. The file is looked for once per second, at a
step. A rank that sees it too late traces nothing. Only one trace runs at a time; another request is answered after
it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flatout.inside.log import guarded
from flatout.inside.phases.trace_window import TraceWindow, WindowState
from flatout.inside.protocol import File, partial_name


class AskedTrace:
    """The requests of one process, and the trace that it takes."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / File.TRACE_REQUEST
        self._seen = 0  # time at which the last request was written
        self._window: TraceWindow | None = None
        self._request: dict[str, Any] = {}
        self._rank = 0
        self.is_active = False

    def look(self, step: int, rank: int) -> None:
        """Take up a new request. `step` is the number of steps that have ended."""
        try:
            written = self._path.stat().st_mtime_ns
        except OSError:
            return
        if written == self._seen or self.is_active:
            return
        self._seen = written
        self._request = json.loads(self._path.read_text(encoding="utf-8"))
        self._rank = rank
        if self._request["first_step"] <= step + 1:
            self._answer("the request came too late for its first step")
            return
        path = Path(self._request["folder"]) / File.TRACE.of(rank)
        self._window = TraceWindow(path, self._request["num_steps"], None)
        self.is_active = True

    @guarded
    def stepped(self, step: int) -> None:
        """Advance the trace after step `step` has ended."""
        window, first = self._window, self._request["first_step"]
        if window is None:
            return
        if window.state is WindowState.IDLE and step + 2 >= first:
            window.prepare()
        elif window.state is WindowState.PREPARED and step + 1 >= first:
            window.start(step + 1)
        elif window.state is WindowState.TRACING and not window.next_step():
            window.stop()
        if window.state is WindowState.DONE:
            self._end(window)

    @guarded
    def process_ends(self) -> None:
        """End a trace that runs, and keep its complete steps: torch crashes at its own end under a running profiler."""
        window = self._window
        if window is not None:
            window.stop()
            self._end(window)

    def _end(self, window: TraceWindow) -> None:
        self.is_active, self._window = False, None
        if window.problem is not None:
            self._answer(window.problem)

    def _answer(self, problem: str) -> None:
        path = Path(self._request["folder"]) / File.TRACE_FAILED.of(self._rank)
        partial = path.with_name(partial_name(path.name))
        partial.write_text(problem, encoding="utf-8")
        partial.replace(path)
