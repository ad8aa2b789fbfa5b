"""Trace a few steps with torch.profiler and export them as plain Kineto JSON when they are over.

In: the boundaries of steps. Out: a trace file. `prepare` is called one step ahead (it loads the GPU's tracing library),
then `start`, `next_step` between two steps, and `stop`. Only one profiler can run in a process: if the script starts
its own, ours ends at once.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any

import torch
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity

from flatout.inside.log import guarded
from flatout.inside.protocol import partial_name

MAX_EVENTS = 2_000_000
EVENTS_PER_OPERATOR = 6  # an operator's nested operators, launch and kernel
_MAX_S = 60.0
_BYTES_PER_EVENT = 300
_MARK = "ProfilerStep#"
_AFTER_LAST_STEP = b"AfterLastStep"  # as long as `_MARK`, which it replaces
_STARTERS = ("_prepare_trace", "_start_trace")


class WindowState(Enum):
    IDLE = auto()
    PREPARED = auto()
    TRACING = auto()
    DONE = auto()


class TraceWindow:
    """The traced steps of a rank; `problem` says why there is no trace, or only part of one."""

    def __init__(
        self, path: Path, num_steps: int, num_operators: int | None, *, has_loader_threads: bool = False
    ) -> None:
        self.state = WindowState.IDLE
        self.problem: str | None = None
        self.steps: list[int] = []  # the completely traced steps
        self._path = path
        self._has_loader_threads = has_loader_threads
        self._num_steps = num_steps
        if num_operators:
            self._num_steps = max(min(num_steps, MAX_EVENTS // (num_operators * EVENTS_PER_OPERATOR)), 1)
        self._num_operators = num_operators
        self._profiler: Any = None
        self._mark: Any = None
        self._step = 0
        self._started = 0.0
        self._is_ours = False
        self._originals: dict[str, Any] = {}

    def prepare(self) -> None:
        if getattr(autograd_profiler, "_is_profiler_enabled", False):
            self._give_up("the script runs torch.profiler itself")
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():
            activities.append(ProfilerActivity.CUDA)
        elif hasattr(torch, "xpu") and torch.xpu.is_initialized():
            activities.append(ProfilerActivity.XPU)
        self._profiler = torch.profiler._KinetoProfile(
            activities=activities, record_shapes=True, **_scope(self._has_loader_threads)
        )
        with _quiet_kineto():
            self._profiler.prepare_trace()
        self.state = WindowState.PREPARED
        self._watch_other_profilers()

    def start(self, step: int) -> None:
        if self.state is not WindowState.PREPARED:
            return
        self._is_ours = True
        try:
            with _quiet_kineto():
                self._profiler.start_trace()
        finally:
            self._is_ours = False
        self.state = WindowState.TRACING
        self._started = time.monotonic()
        self._begin(step)

    def next_step(self) -> bool:
        """Mark the end of a traced step; return whether the next step is traced too."""
        if self.state is not WindowState.TRACING:
            return False
        self._mark.__exit__(None, None, None)
        self._mark = None
        self.steps.append(self._step)
        is_enough = len(self.steps) >= self._num_steps or time.monotonic() - self._started >= _MAX_S
        if is_enough:
            return False
        self._begin(self._step + 1)
        return True

    def stop(self) -> None:
        """Stop tracing and write the file; `problem` says what went wrong.

        If the job ends meanwhile, what follows its last complete step does not count as a step, and without a complete
        step nothing is written.
        """
        if self.state is not WindowState.TRACING:
            self._release()
            if self.state is WindowState.PREPARED:
                self._give_up(self.problem or "the job ended before the first traced step")
            return
        incomplete_step = None
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
            incomplete_step = self._step
        self.state = WindowState.DONE
        self._release()
        self._profiler.stop_trace()
        if self.steps:
            self._export(incomplete_step)
        else:
            self.problem = self.problem or "the job ended before the first traced step was complete"
        self._profiler = None

    def _begin(self, step: int) -> None:
        self._step = step
        self._mark = torch.autograd.profiler.record_function(_mark_name(step))
        self._mark.__enter__()

    def _export(self, incomplete_step: int | None) -> None:
        num_events = (self._num_operators or 1000) * EVENTS_PER_OPERATOR * max(len(self.steps), 1)
        free_bytes = shutil.disk_usage(self._path.parent).free
        partial = self._path.with_name(partial_name(self._path.name))
        try:
            if free_bytes < num_events * _BYTES_PER_EVENT:
                raise OSError(f"no space left for it ({free_bytes >> 20} MiB are free)")
            self._profiler.export_chrome_trace(str(partial))
            if not _is_complete(partial):
                raise OSError("it is truncated, possibly because the disk was full")
            if incomplete_step is not None:
                _rename_mark(partial, _mark_name(incomplete_step))
            os.replace(partial, self._path)
        except (OSError, RuntimeError) as error:
            partial.unlink(missing_ok=True)
            self.problem = f"the trace was not written: {error}"

    def _give_up(self, problem: str) -> None:
        self.problem = problem
        self.state = WindowState.DONE
        self._profiler = None

    def _watch_other_profilers(self) -> None:
        """Stop our profiler before the script starts its own: two would raise an error in the script's own call."""
        for name in _STARTERS:
            original = getattr(autograd_profiler.profile, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(autograd_profiler.profile, name, self._yielding(original))

    def _yielding(self, original: Any) -> Any:
        def start(profiler: Any) -> Any:
            if not self._is_ours and self._originals:
                self._yield_to_script()
            return original(profiler)

        return start

    @guarded
    def _yield_to_script(self) -> None:
        self.problem = "the script started torch.profiler itself during the traced steps"
        if self.state is WindowState.PREPARED:
            # Only a recording returns Kineto to the unprepared state, so make an empty one.
            self._is_ours = True
            self._profiler.start_trace()
            self._profiler.stop_trace()
            self._is_ours = False
            self._release()
            self._give_up(self.problem)
        else:
            self.stop()

    def _release(self) -> None:
        for name, original in self._originals.items():
            setattr(autograd_profiler.profile, name, original)
        self._originals.clear()


def _mark_name(step: int) -> str:
    return f"{_MARK}{step}"


def _rename_mark(path: Path, name: str) -> None:
    """Give the marks with this name another one of the same length, in place: a trace can be too large for memory."""
    old = json.dumps(name).encode()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        position = content.find(old)
        while position >= 0:
            start = position + 1  # after the quotation mark
            content[start : start + len(_AFTER_LAST_STEP)] = _AFTER_LAST_STEP
            position = content.find(old, start)


@contextmanager
def _quiet_kineto() -> Iterator[None]:
    """Keep Kineto from writing to the job's standard error; it reads the variable at its first use."""
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


def _is_complete(path: Path) -> bool:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 64, 0))
        return file.read().rstrip().endswith(b"}")


def _scope(has_loader_threads: bool) -> dict[str, Any]:
    """Return the arguments with which the profiler records all threads, if a separate thread loads batches.

    It records only the threads that began it otherwise, and the wait for such a loader would look like idle time.
    """
    if not has_loader_threads:
        return {}
    try:
        return {"experimental_config": torch._C._profiler._ExperimentalConfig(profile_all_threads=True)}
    except TypeError:  # torch before 2.7 cannot
        return {}
