"""Note how this process spends the time before its first steps: imports, process groups, evaluation, compilation.

In: the start of the process, and spans of time that hooks note before a recorder exists. Out: the fields of the event
STARTED, in Unix nanoseconds, written once the warm-up is over. What a script does between these spans is its own: other
imports, its model, its data set.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.distributed

from flatout.inside.recording.attempt import imported_unix_ns, started_unix_ns

_now = time.perf_counter_ns
_MAX_SPANS = 16  # kept of each kind

# Names under which versions of torch keep the times of their compilations, the first that is there: of frames with the
# forward passes, and of backward passes, which are compiled later.
_FORWARD = ("_compile.compile_inner", "entire_frame_compile")
_BACKWARD = ("backward._backward_impl", "compile_fx.<locals>.bw_compiler")


class StartSpans:
    """The spans of this process, as pairs of `time.perf_counter_ns`. A forked child begins with none."""

    def __init__(self) -> None:
        self.groups: list[tuple[int, int]] = []  # making process groups
        self.evaluations: list[tuple[int, int]] = []  # before the first event of a training loop, without gradients
        self.loaders: list[tuple[int, int]] = []  # making a loader's iterator, also before the first event
        self._evaluates_since = 0

    def clear(self) -> None:
        for spans in (self.groups, self.evaluations, self.loaders):
            spans.clear()
        self._evaluates_since = 0

    def add(self, spans: list[tuple[int, int]], began: int) -> None:
        if len(spans) < _MAX_SPANS:
            spans.append((began, _now()))

    def evaluation_begins(self) -> None:
        self._evaluates_since = self._evaluates_since or _now()

    def evaluation_ends(self) -> None:
        """Take the call of `train()` after `evaluation_begins`.

        Libraries also load their models in evaluation mode: only where no gradients are computed was it an evaluation.
        """
        if self._evaluates_since and not torch.is_grad_enabled():
            self.add(self.evaluations, self._evaluates_since)
        self._evaluates_since = 0

    def fields(self) -> dict[str, Any]:
        """Return the fields of the event STARTED."""
        offset_ns = time.time_ns() - _now()

        def unix(spans: list[tuple[int, int]]) -> list[list[int]]:
            return [[began + offset_ns, ended + offset_ns] for began, ended in spans]

        return {
            "process_ns": started_unix_ns(os.getpid()),
            "torch_ns": imported_unix_ns(),
            "groups": unix(self.groups),
            "evaluations": unix(self.evaluations),
            "loaders": unix(self.loaders),
            "compilation_s": compilation_s(),
            **_bytecode(),
        }


START_TIMES = StartSpans()


def compilation_s() -> float | None:
    """Return the seconds that torch has compiled so far; None if it has not compiled, or does not say."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    times: dict[str, list[float]] = getattr(dynamo, "compilation_time_metrics", {})
    found = [next((times[name] for name in names if name in times), None) for names in (_FORWARD, _BACKWARD)]
    if found[0] is None:
        return None
    return float(sum(sum(seconds) for seconds in found if seconds is not None))


def _bytecode() -> dict[str, Any]:
    """Return the file of torch's compiled bytecode, and when it was written, if it is there."""
    path = getattr(torch.__spec__, "cached", None)
    try:
        written_ns = None if path is None else os.stat(path).st_mtime_ns
    except OSError:
        written_ns = None
    return {"bytecode": path, "bytecode_ns": written_ns}


def hook_process_groups() -> Callable[[], None] | None:
    """Note how long a script takes to make its process groups."""
    module = torch.distributed
    if not module.is_available():
        return None
    owners = (module, module.distributed_c10d)
    original = module.init_process_group

    @wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        began = _now()
        try:
            return original(*args, **kwargs)
        finally:
            START_TIMES.add(START_TIMES.groups, began)

    for owner in owners:
        owner.init_process_group = init_process_group

    def undo() -> None:
        for owner in owners:
            if owner.init_process_group is init_process_group:
                owner.init_process_group = original

    return undo
