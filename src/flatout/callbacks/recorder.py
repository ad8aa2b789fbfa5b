"""Trace a few steps of a training from inside its process, with the PyTorch profiler.

In: a call after each step. Out: `trace-N.json.gz` in a folder, and from the first rank what to type next, or the
diagnosis in a run tracker, for which this rank pauses. It never raises: a failure is printed once, and recording ends.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import Any

from flatout.errors import printable

TRACKERS = ("mlflow", "wandb", "tensorboard")
WAIT_FOR_RANKS_S = 120.0
_POLL_S = 0.2


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Return the method so that a failure ends the recording with one printed line, and not the job."""

    @wraps(method)
    def guarded(self: Recorder, *arguments: Any) -> None:
        if self.problem is not None:
            return
        try:
            method(self, *arguments)
        except Exception as error:  # noqa: BLE001 - nothing may raise into the job
            self.problem = error
            self._say(f"nothing more is recorded: {type(error).__name__}: {error}")

    return guarded


class Recorder:
    """Counts the steps of this rank, and traces `steps` of them after `warmup` others."""

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        steps: int = 3,
        warmup: int = 10,
        log_to: str | None = None,
        force: bool = False,
    ) -> None:
        """Prepare to record into `folder`, whose traces are replaced only with `force`.

        Raises ValueError for arguments that no job can have: this is before the training.
        """
        if steps < 1 or warmup < 1:
            raise ValueError(f"`steps` and `warmup` must be at least 1, but are {steps} and {warmup}")
        if log_to is not None and log_to not in TRACKERS:
            raise ValueError(f"`log_to` must be one of {', '.join(TRACKERS)}, but is {log_to!r}")
        self.folder = Path(folder)
        self.steps = steps
        self.warmup = warmup
        self.log_to = log_to
        self.force = force
        self.problem: Exception | None = None  # why nothing more is recorded
        self.num_steps = 0
        self._profiler: Any = None
        self._is_done = False

    @property
    def trace(self) -> Path:
        """Return the file of this rank."""
        return self.folder / f"trace-{rank()}.json.gz"

    @_guarded
    def step(self) -> None:
        """Count one step of the training; call it after each optimizer step."""
        self.num_steps += 1
        if self._is_done:
            return
        if self._profiler is None and self.num_steps == self.warmup:
            self._start()
        elif self._profiler is not None:
            self._profiler.step()

    @_guarded
    def close(self) -> None:
        """End the recording at the end of the training, and say what was recorded."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
        if self._is_done:
            return
        self._is_done = True
        needed = self.warmup + self.steps + 1
        self._say(f"no trace of rank {rank()}: the training had {self.num_steps} steps, and a trace needs {needed}")

    def _start(self) -> None:
        from torch.profiler import ProfilerActivity, profile, schedule

        self._check_folder()
        activities = [ProfilerActivity.CPU]
        if _has_cuda():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=self.steps, repeat=1),
            on_trace_ready=self._write,
        )
        self._profiler.start()

    def _check_folder(self) -> None:
        if self.trace.exists() and not self.force:
            raise FileExistsError(f"{self.trace} exists: pass another folder, or force=True")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.trace.unlink(missing_ok=True)

    @_guarded
    def _write(self, profiler: Any) -> None:
        """Write the trace under its name when it is complete, and on the first rank report all of them."""
        partial = self.folder / f".trace-{rank()}.part.json.gz"
        profiler.export_chrome_trace(str(partial))
        partial.replace(self.trace)
        self._is_done = True
        if rank() == 0:
            self._report()

    def _report(self) -> None:
        if self.log_to is None:
            self._say(f"traced {self.steps} steps; next: flatout diagnose {self.folder}")
            return
        from flatout.callbacks.logged import log_diagnosis

        if not self._all_ranks_have_written():
            self._say(f"not all ranks have written their trace within {WAIT_FOR_RANKS_S:.0f} s: diagnosing the others")
        self._say(log_diagnosis(self.folder, self.log_to, step=self.num_steps))

    def _all_ranks_have_written(self) -> bool:
        """Wait for the traces of all ranks that can write to this folder."""
        end_s = time.monotonic() + WAIT_FOR_RANKS_S
        while time.monotonic() < end_s:
            if len(list(self.folder.glob("trace-*.json.gz"))) >= world_size():
                return True
            time.sleep(_POLL_S)
        return False

    def _say(self, line: str) -> None:
        print(f"flatout: {printable(line)}", file=sys.stderr, flush=True)


def watch(
    optimizer: Any,
    folder: str | PathLike[str],
    *,
    steps: int = 3,
    warmup: int = 10,
    log_to: str | None = None,
    force: bool = False,
) -> Recorder:
    """Record a training by its optimizer: each step of that is a step. Return the recorder.

    An optimizer that Accelerate prepared is taken too: passes that only accumulate gradients do not count.
    """
    recorder = Recorder(folder, steps=steps, warmup=warmup, log_to=log_to, force=force)
    inner = optimizer
    while hasattr(inner, "optimizer"):  # a wrapper, such as Accelerate's
        inner = inner.optimizer
    inner.register_step_post_hook(lambda *_: recorder.step())
    return recorder


def rank() -> int:
    """Return the rank of this process; 0 outside a distributed job."""
    return _from_group("get_rank", "RANK", 0)


def world_size() -> int:
    """Return the number of ranks; 1 outside a distributed job."""
    return _from_group("get_world_size", "WORLD_SIZE", 1)


def _from_group(function: str, variable: str, otherwise: int) -> int:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(getattr(distributed, function)())
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else otherwise


def _has_cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())
