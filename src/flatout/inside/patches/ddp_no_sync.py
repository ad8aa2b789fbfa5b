"""Make DistributedDataParallel reduce gradients only in the last of the passes before an optimizer step.

In: forwards in training mode, counted since the last step. The last pass of a step has the number `passes`. If a step
(or gradient clipping, or a GradScaler) comes earlier, e.g. at the end of an epoch, the existing gradients are averaged
first, so that an optimizer always applies the mean over the ranks. A script that reads `.grad` itself between passes
sees only its rank's gradients.
"""

from __future__ import annotations

import weakref
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flatout.inside.patches.report import Report

_BYTES_TOGETHER = 64 << 20


class _Passes:
    """The passes of one DistributedDataParallel module."""

    def __init__(self, ddp: Any) -> None:
        self.count = 0
        self.is_unsynced = False
        self.parameters = [one for one in ddp.module.parameters() if one.requires_grad]
        self.ids = {id(one) for one in self.parameters}


def ddp_no_sync(report: Report, *, passes: int = 2) -> None:
    if not torch.distributed.is_available():
        report.note("this torch has no torch.distributed")
        return
    from torch.nn.parallel import DistributedDataParallel

    report.waits("no DistributedDataParallel was trained")
    known: weakref.WeakKeyDictionary[Any, _Passes] = weakref.WeakKeyDictionary()
    original = DistributedDataParallel.forward

    @wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not (report.is_on and self.training and torch.is_grad_enabled()):
            return original(self, *args, **kwargs)
        if self.static_graph:
            report.note("a DistributedDataParallel has a static graph")
            return original(self, *args, **kwargs)
        state = known.get(self)
        if state is None:
            state = known[self] = _Passes(self)
        state.count += 1
        if not self.require_backward_grad_sync:  # the script's own no_sync()
            report.note("the script uses no_sync() itself")
            return original(self, *args, **kwargs)
        if state.count >= passes:
            state.is_unsynced = False  # this pass reduces all accumulated gradients
            return original(self, *args, **kwargs)
        state.is_unsynced = True
        report.did("passes_without_reduction")
        self.require_backward_grad_sync = False
        try:
            return original(self, *args, **kwargs)
        finally:
            self.require_backward_grad_sync = True

    DistributedDataParallel.forward = forward

    def level(ids: set[int] | None) -> None:
        for ddp, state in list(known.items()):
            if state.is_unsynced and (ids is None or not ids.isdisjoint(state.ids)):
                state.is_unsynced = False
                if average(state.parameters, ddp.process_group):
                    report.did("steps_with_fewer_passes")

    _hook_readers(level, known)


def _hook_readers(level: Any, known: Any) -> None:
    """Hook everything that uses gradients: optimizers, clipping, GradScalers."""

    def ids_of(optimizer: Any) -> set[int]:
        return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}

    def before(optimizer: Any, *_: Any) -> None:
        if any(state.is_unsynced for state in known.values()):
            level(ids_of(optimizer))

    def after(optimizer: Any, *_: Any) -> None:
        if any(state.count for state in known.values()):
            ids = ids_of(optimizer)
            for state in known.values():
                if not ids.isdisjoint(state.ids):
                    state.count = 0

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clip = _leveled(getattr(torch.nn.utils, name), level, known)
        setattr(torch.nn.utils, name, clip)
        setattr(torch.nn.utils.clip_grad, name, clip)
    scaler = torch.amp.grad_scaler.GradScaler
    original_unscale, original_step = scaler.unscale_, scaler.step

    @wraps(original_unscale)
    def unscale_(self: Any, optimizer: Any) -> Any:
        before(optimizer)
        return original_unscale(self, optimizer)

    @wraps(original_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        before(optimizer)
        result = original_step(self, optimizer, *args, **kwargs)
        after(optimizer)  # the step was skipped
        return result

    scaler.unscale_, scaler.step = unscale_, step


def _leveled(clip: Any, level: Any, known: Any) -> Any:
    @wraps(clip)
    def leveled(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        if any(state.is_unsynced for state in known.values()):
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            level({id(one) for one in parameters})
        return clip(parameters, *args, **kwargs)

    return leveled


def average(parameters: list[Any], group: Any) -> bool:
    """Replace gradients by their mean over the ranks, like a reduction in backward; return False if there are none."""
    has_gradient = torch.tensor([one.grad is not None for one in parameters], dtype=torch.int32)
    device = next((one.device for one in parameters), torch.device("cpu"))
    has_gradient = has_gradient.to(device)
    torch.distributed.all_reduce(has_gradient, group=group)
    chosen = [one for one, count in zip(parameters, has_gradient.tolist(), strict=True) if count]
    world_size = torch.distributed.get_world_size(group)
    with torch.no_grad():
        for some in _portions(chosen):
            for one in some:
                if one.grad is None:
                    one.grad = torch.zeros_like(one)
            flat = torch.cat([one.grad.reshape(-1) for one in some])
            flat.div_(world_size)
            torch.distributed.all_reduce(flat, group=group)
            for one, part in zip(some, flat.split([one.numel() for one in some]), strict=True):
                one.grad.copy_(part.view_as(one.grad))
    return bool(chosen)


def _portions(parameters: list[Any]) -> list[list[Any]]:
    """Split parameters into portions of limited size, each of one type and device."""
    portions: list[list[Any]] = []
    size, kind = 0, None
    for one in parameters:
        if kind != (one.dtype, one.device) or size > _BYTES_TOGETHER:
            portions.append([])
            size, kind = 0, (one.dtype, one.device)
        portions[-1].append(one)
        size += one.numel() * one.element_size()
    return portions
