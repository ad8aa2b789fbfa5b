"""Time the copies of batches to a GPU, by events on the stream of each copy: nothing waits for them.

In: calls of `Tensor.to` and `Tensor.cuda`, of the training process, after its first batch: before it, scripts move
their models. Out: how many copies from the CPU's memory there were, their bytes, and the time that the GPU took for
those that were timed. A copy is not timed while a CUDA graph is captured, nor when timing has used up its share of the
time.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from flatout.inside.loader_stages.budget import Budget
from flatout.inside.log import LOG

MIN_BYTES = 1 << 10  # smaller ones are flags and scalars
_MAX_PENDING = 64  # copies whose events are kept: later ones are not timed until the GPU has finished some
_NUM_UNTIMED = 4  # of the first copies
_now = time.perf_counter


class _Pending(NamedTuple):
    """Events before and after a copy."""

    before: Any
    after: Any


class DeviceCopies:
    """The copies of one process. `cuda` is `torch.cuda`, and `kind` its devices' type."""

    def __init__(self, cuda: Any = torch.cuda, kind: str = "cuda") -> None:
        self._cuda, self._kind = cuda, kind
        self._begin_anew()

    def reset(self) -> None:
        """Forget all copies: a forked process begins with none.

        It must not destroy the events of its parent: without CUDA, torch ends a process that tries.
        """
        for copy in self._pending:
            _keep_for_ever(copy.before)
            _keep_for_ever(copy.after)
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._budget = Budget(cost_s=0.0)
        self._least_cost_s = float("inf")  # of timing one copy
        self._pending: deque[_Pending] = deque()
        self._began_s: float | None = None  # when the first batch was made or received
        self.num_copies = self.num_timed = self.num_bytes = 0
        self.timed_s = 0.0

    @property
    def spent_s(self) -> float:
        """The time that timing has taken."""
        return self._budget.spent_s

    def begin(self) -> None:
        """Count the copies after this."""
        if self._began_s is None:
            self._began_s = _now()

    def call(self, original: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """Call `to` or `cuda`, and count it if it copies a tensor of the CPU to a GPU."""
        before = None
        try:
            if self._began_s is not None and tensor.device.type == "cpu":
                before = self._before(tensor, args, kwargs)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("copies to a GPU")
        if before is None:
            return original(tensor, *args, **kwargs)
        result = original(tensor, *args, **kwargs)
        try:
            self._after(before)
        except Exception:  # noqa: BLE001 - as above
            LOG.error("copies to a GPU")
        return result

    def look(self) -> None:
        """Take over the times of the copies that the GPU has finished."""
        while self._pending and self._pending[0].after.query():
            copy = self._pending.popleft()
            self.timed_s += copy.before.elapsed_time(copy.after) / 1e3
            self.num_timed += 1

    def report(self) -> dict[str, float]:
        return {
            "num_copies": self.num_copies,
            "num_bytes": self.num_bytes,
            "num_timed": self.num_timed,
            "timed_s": self.timed_s,
        }

    def _before(self, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Count a copy, and return the stream and an event before it; None if it is none, or is not timed."""
        num_bytes = tensor.numel() * tensor.element_size()
        device = self._target(args, kwargs) if num_bytes >= MIN_BYTES else None
        if device is None:
            return None
        self.num_copies += 1
        self.num_bytes += num_bytes
        began = _now()
        elapsed_s = began - (self._began_s or began)
        if len(self._pending) >= _MAX_PENDING:
            self.look()
        is_full = len(self._pending) >= _MAX_PENDING
        if self.num_copies <= _NUM_UNTIMED or is_full or not self._budget.allows(elapsed_s):
            return None
        if self._cuda.is_current_stream_capturing():
            return None
        stream = self._cuda.current_stream(device)
        event = stream.record_event(self._cuda.Event(enable_timing=True))
        return stream, event, _now() - began

    def _after(self, before: Any) -> None:
        began = _now()
        stream, event, spent_s = before
        self._pending.append(_Pending(event, stream.record_event(self._cuda.Event(enable_timing=True))))
        # An event that waits until the GPU's queue has room costs the job nothing: the copy would have waited.
        self._least_cost_s = min(self._least_cost_s, spent_s + _now() - began)
        self._budget.add(0, self._least_cost_s)

    def _target(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
        """Return the GPU that a call names: by a device, its name or number, or a tensor on it. None if it is none."""
        named = kwargs.get("device", args[0] if args else None)
        if isinstance(named, torch.Tensor):
            named = named.device
        if isinstance(named, (str, int)) and not isinstance(named, bool):
            named = torch.device(named)
        if not isinstance(named, torch.device) or named.type != self._kind or not self._cuda.is_initialized():
            return None
        return named


def _keep_for_ever(event: Any) -> None:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(event))


def hook_copies(copies: DeviceCopies) -> Callable[[], None]:
    """Count the copies that `Tensor.to` and `Tensor.cuda` make; return a function that removes the hooks."""
    original_to, original_cuda = torch.Tensor.to, torch.Tensor.cuda

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        return copies.call(original_to, self, *args, **kwargs)

    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and "device" not in kwargs:
            return copies.call(lambda tensor, _, **more: original_cuda(tensor, **more), self, "cuda", **kwargs)
        return copies.call(original_cuda, self, *args, **kwargs)

    names = {"to": to, "cuda": cuda}
    for name, function in names.items():
        setattr(torch.Tensor, name, function)

    def undo() -> None:
        for name in names:
            delattr(torch.Tensor, name)

    return undo
