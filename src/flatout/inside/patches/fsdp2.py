"""Change FSDP2: keep weights gathered, gather them further ahead, shard them within a host only, and reduce gradients
only in the last pass before an optimizer step."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from flatout.inside.patches.models import MODELS, around_forward
from flatout.inside.patches.report import Report

_HOLDERS = (
    "torch.distributed.fsdp",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed.fsdp._fully_shard._fully_shard",
    "torch.distributed._composable",
    "torch.distributed._composable.fsdp",
    "torch.distributed._composable.fsdp.fully_shard",
)
_MARK = "_flatout_fsdp_passes"


def fsdp2(
    report: Report,
    *,
    reshard_after_forward: bool = True,
    forward_prefetch: int = 0,
    backward_prefetch: int = 0,
    ranks_per_copy: int = 0,
) -> None:
    original = _fully_shard(report)
    if original is None:
        return
    report.waits("nothing was sharded by fully_shard")
    order = _Order(report, forward_prefetch, backward_prefetch)
    meshes = _Meshes(report, ranks_per_copy)

    @wraps(original)
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        own = kwargs
        if not reshard_after_forward:
            kwargs = {**kwargs, "reshard_after_forward": False}
        if ranks_per_copy:
            kwargs = {**kwargs, "mesh": meshes.in_place_of(kwargs.get("mesh"))}
        try:
            sharded = original(module, *args, **kwargs)
        except TypeError:
            sharded = original(module, *args, **own)
        if not reshard_after_forward:
            report.did("kept_gathered")
        if (forward_prefetch or backward_prefetch) and isinstance(module, torch.nn.Module):
            order.watch(module)
        return sharded

    for name in _HOLDERS:
        holder = sys.modules.get(name)
        if holder is not None and getattr(holder, "fully_shard", None) is original:
            holder.fully_shard = fully_shard  # type: ignore[attr-defined]


def _fully_shard(report: Report) -> Any:
    for name in ("torch.distributed._composable.fsdp", "torch.distributed.fsdp"):  # the second since 2.6
        with suppress(ImportError):
            import_module(name)
    found = (getattr(sys.modules.get(name), "fully_shard", None) for name in _HOLDERS)
    function = next((one for one in found if callable(one)), None)
    if function is None:
        report.note("this torch has no fully_shard")
    return function


class _Meshes:
    """Meshes of two dimensions, in place of those of one over all ranks."""

    def __init__(self, report: Report, ranks_per_copy: int) -> None:
        self._report, self._ranks = report, ranks_per_copy
        self._made: dict[str, Any] = {}

    def in_place_of(self, given: Any) -> Any:
        """Return the mesh to shard over: the given one if it has some ranks only, or two dimensions."""
        num_ranks = torch.distributed.get_world_size()
        if given is not None and (given.ndim != 1 or given.size() != num_ranks):
            self._report.note("the script shards over a part of the ranks, or in two dimensions")
            return given
        if num_ranks % self._ranks or num_ranks == self._ranks:
            self._report.note(f"{num_ranks} ranks cannot be divided into copies of {self._ranks}")
            return given
        if given is not None:
            device = given.device_type
        else:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        if device not in self._made:
            shape = (num_ranks // self._ranks, self._ranks)
            make = import_module("torch.distributed.device_mesh").init_device_mesh
            self._made[device] = make(device, shape, mesh_dim_names=("replicate", "shard"))
        self._report.did("sharded_within_a_copy")
        return self._made[device]


class _Order:
    """Collects the units in the order of their first forward, and then sets which units each gathers ahead."""

    def __init__(self, report: Report, forward: int, backward: int) -> None:
        self._report, self._forward, self._backward = report, forward, backward
        self._units: list[Any] = []
        self._handles: list[Any] = []

    def watch(self, module: Any) -> None:
        self._handles.append(module.register_forward_pre_hook(self._called))

    def _called(self, module: Any, _: Any) -> None:
        if not torch.is_grad_enabled():
            return
        if not any(module is unit for unit in self._units):
            self._units.append(module)
            return
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._report.guarded(self._set)()
        self._units = []

    def _set(self) -> None:
        units = self._units
        # The root is called first, and it also begins first in backward.
        is_root_first = len(units) > 1 and any(child is units[1] for child in units[0].modules())
        backward = [*units[:1], *units[:0:-1]] if is_root_first else units[::-1]
        for units_in_order, depth, setter in (
            (units, self._forward, "set_modules_to_forward_prefetch"),
            (backward, self._backward, "set_modules_to_backward_prefetch"),
        ):
            if depth and not all(hasattr(unit, setter) for unit in units):
                self._report.note("prefetch needs a torch later than 2.4")
                return
            if depth:
                for place, unit in enumerate(units_in_order):
                    ahead = units_in_order[place + 1 : place + 1 + depth]
                    if ahead:
                        getattr(unit, setter)(ahead)
        self._report.did("units", len(units))


def fsdp2_no_sync(report: Report, *, passes: int = 2) -> None:
    if not torch.distributed.is_available():
        report.note("this torch has no torch.distributed")
        return
    report.waits("no model sharded by fully_shard was found")
    counts: dict[int, _Sharded] = {}
    is_compiling = torch.compiler.is_compiling

    def around(forward: Any, module: Any, args: Any, kwargs: Any) -> Any:
        if module.training and torch.is_grad_enabled() and not is_compiling():
            state = counts.get(id(module))
            if state is not None:
                state.count += 1
                state.is_unsynced = state.count < passes
                module.set_requires_gradient_sync(not state.is_unsynced)
                if state.is_unsynced:
                    report.did("passes_without_reduction")
        return forward(module, *args, **kwargs)

    def found(model: Any) -> None:
        if not hasattr(model, "set_requires_gradient_sync"):
            report.note("a model is not sharded by fully_shard")
            return
        if not hasattr(model._get_fsdp_state(), "_root_post_backward_final_callback"):
            report.note("this version of torch cannot reduce gradients after backward")
            return
        counts[id(model)] = _Sharded(model)
        around_forward(model, _MARK, around)

    def level(optimizer: Any = None, *_: Any) -> None:
        del optimizer
        for state in counts.values():
            if state.is_unsynced:
                state.is_unsynced = False
                state.reduce()
                report.did("steps_with_fewer_passes")

    def after(*_: Any) -> None:
        for state in counts.values():
            state.count = 0

    MODELS.on_model(report, found)
    register_optimizer_step_pre_hook(level)
    register_optimizer_step_post_hook(after)
    scaler = torch.amp.grad_scaler.GradScaler
    for name in ("unscale_", "step"):
        setattr(scaler, name, _leveled(getattr(scaler, name), level))
    for name in ("clip_grad_norm_", "clip_grad_value_"):
        clip = _leveled(getattr(torch.nn.utils, name), level)
        setattr(torch.nn.utils, name, clip)
        setattr(torch.nn.utils.clip_grad, name, clip)


class _Sharded:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.count = 0
        self.is_unsynced = False

    def reduce(self) -> None:
        """Reduce as at the end of a reducing backward pass, for a step with fewer passes than others."""
        self.model.set_requires_gradient_sync(True)
        self.model._get_fsdp_state()._root_post_backward_final_callback()


def _leveled(clip: Any, level: Any) -> Any:
    @wraps(clip)
    def leveled(*args: Any, **kwargs: Any) -> Any:
        level()
        return clip(*args, **kwargs)

    return leveled
