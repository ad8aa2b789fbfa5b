"""Make copies from pinned host memory to the GPU non-blocking: `Tensor.to` and `Tensor.cuda`, and `Module.to`, which
calls them.

The stream preserves the order of work on the GPU. Copies to the host and copies from pageable memory are unchanged.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch

from flatout.inside.patches.report import Report


def non_blocking_copies(report: Report) -> None:
    if not (torch.cuda.is_initialized() or torch.cuda.device_count() > 0):
        report.note("there is no GPU to copy to")
        return
    report.waits("nothing was copied from pinned memory")
    original_to, original_cuda = torch.Tensor.to, torch.Tensor.cuda
    is_compiling = torch.compiler.is_compiling

    @wraps(original_to)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not report.is_on or is_compiling() or not self.is_cpu or not _is_for_gpu(args, kwargs):
            return original_to(self, *args, **kwargs)
        if not self.is_pinned():
            return original_to(self, *args, **kwargs)
        args, kwargs = without_waiting(args, kwargs)
        report.did("copies")
        return original_to(self, *args, **kwargs)

    @wraps(original_cuda)
    def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not report.is_on or is_compiling() or not self.is_cpu or not self.is_pinned():
            return original_cuda(self, *args, **kwargs)
        report.did("copies")
        args = (args[0], True, *args[2:]) if len(args) > 1 else args
        return original_cuda(self, *args, **(kwargs if len(args) > 1 else {**kwargs, "non_blocking": True}))

    torch.Tensor.to, torch.Tensor.cuda = to, cuda


def _is_for_gpu(args: Any, kwargs: Any) -> bool:
    target: Any = kwargs.get("device", kwargs.get("other"))
    if target is None and args:
        target = args[0]
    if isinstance(target, torch.device):
        return bool(target.type == "cuda")
    if isinstance(target, str):
        return target.startswith("cuda")
    if isinstance(target, torch.Tensor):
        return bool(target.is_cuda)
    return type(target) is int


def without_waiting(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `Tensor.to(device, dtype, non_blocking)` or `.to(other, non_blocking)`, non-blocking."""
    place = 1 if args and isinstance(args[0], torch.Tensor) else 2
    if len(args) > place:
        return (*args[:place], True, *args[place + 1 :]), kwargs
    if len(args) == 2 and place == 2 and isinstance(args[1], bool):  # (device, non_blocking)
        return (args[0], True), kwargs
    return args, {**kwargs, "non_blocking": True}
