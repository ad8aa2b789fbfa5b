"""Switch what DistributedDataParallel fixes when it is made, by a new reducer: bucket sizes, views and hooks.

A reducer is made as when a DistributedDataParallel is unpickled: from its parameters and its attributes. All ranks do
it after the same step, when no gradient is being reduced. The new reducer orders its buckets after its first backward
pass, in which all ranks agree on them, and times its first ten steps, so these are carry-over.
"""

from __future__ import annotations

from typing import Any

import torch

from flatout.inside import first_bucket
from flatout.inside.blocks.switcher import Switcher
from flatout.inside.gradient_hooks import GradientHook, make_hook
from flatout.inside.live_objects import live_objects

_MIB = 1 << 20
_CAPACITY = ("bucket_bytes_cap", "bucket_bytes_cap_default", "_bucket_config")  # the last: from torch 2.13
_Attributes = dict[str, Any]


class NewReducer(Switcher):
    """A change of attributes of each DistributedDataParallel, followed by a new reducer."""

    def __init__(self) -> None:
        super().__init__()
        self._changed: list[tuple[Any, _Attributes]] = []  # with the script's own attributes

    def apply(self) -> None:
        modules = wrapped_modules()
        if not modules:
            self.problem = "no DistributedDataParallel was trained"
            return
        self.problem = next((problem for module in modules if (problem := why_not(module)) is not None), None)
        if self.problem is not None:
            return
        for module in modules:
            own = {name: module.__dict__[name] for name in self.names() if name in module.__dict__}
            self._changed.append((module, own))
            self.change(module)
            make_reducer(module)

    def undo(self) -> None:
        while self._changed:
            module, own = self._changed.pop()
            module.__dict__.update(own)
            make_reducer(module)

    def names(self) -> tuple[str, ...]:
        """Return the attributes that `change` sets."""
        raise NotImplementedError

    def change(self, module: Any) -> None:
        raise NotImplementedError


class Buckets(NewReducer):
    def __init__(
        self, bucket_cap_mb: int | None, first_bucket_mib: int | None, gradient_as_bucket_view: bool | None
    ) -> None:
        super().__init__()
        self._size_mib = bucket_cap_mb
        self._first_mib = first_bucket_mib
        self._are_views = gradient_as_bucket_view

    def apply(self) -> None:
        if self._first_mib is not None:
            problems = map(first_bucket.why_not, wrapped_modules())
            self.problem = next((problem for problem in problems if problem is not None), None)
            if self.problem is not None:
                return
        with first_bucket.first_bucket(self._first_mib):
            super().apply()

    def names(self) -> tuple[str, ...]:
        return (*_CAPACITY, "gradient_as_bucket_view")

    def change(self, module: Any) -> None:
        if self._size_mib is not None:
            module.__dict__.update(bucket_bytes_cap=self._size_mib * _MIB, bucket_bytes_cap_default=False)
            config = module.__dict__.get("_bucket_config")
            if config is not None:
                module.__dict__["_bucket_config"] = type(config).create(
                    bucket_cap_mb=self._size_mib, bucket_cap_mb_list=None, use_python_reducer=module._use_python_reducer
                )
        if self._are_views is not None:
            module.__dict__["gradient_as_bucket_view"] = self._are_views


class Hook(NewReducer):
    def __init__(self, parameters: dict[str, Any]) -> None:
        super().__init__()
        self._parameters = parameters
        self._hooks: list[GradientHook] = []

    def names(self) -> tuple[str, ...]:
        return ("_comm_hooks",)

    def change(self, module: Any) -> None:
        state, hook = make_hook(module, **self._parameters)
        self._hooks.append(state)
        module.__dict__["_comm_hooks"] = [(hook, state)]

    def undo(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()
        super().undo()

    def apply(self) -> None:
        if any(module._comm_hooks for module in wrapped_modules()):
            self.problem = "the script has its own hook"
            return
        super().apply()


def wrapped_modules() -> list[Any]:
    if not torch.distributed.is_available():
        return []
    from torch.nn.parallel import DistributedDataParallel

    return [module for module in live_objects(DistributedDataParallel) if "reducer" in module.__dict__]


def why_not(module: Any) -> str | None:
    """Return why this module must keep its reducer; None if it can have another."""
    if getattr(module, "static_graph", False):
        return "a DistributedDataParallel has a static graph"
    if getattr(module, "mixed_precision", None) is not None:
        return "a DistributedDataParallel has its own mixed precision"
    if getattr(module, "_delay_all_reduce_params", None):
        return "a DistributedDataParallel delays some of its reductions"
    if not hasattr(module.reducer, "_remove_autograd_hooks"):
        return "this torch cannot remove the hooks of a reducer"
    return None


def make_reducer(module: Any) -> None:
    """Replace the reducer; the old one must have no hooks left, or gradients would be reduced twice."""
    module.reducer._remove_autograd_hooks()
    parameters, expect_sparse_gradient = module._build_params_for_reducer()
    names = module._build_debug_param_to_name_mapping(parameters)
    module._ddp_init_helper(parameters, expect_sparse_gradient, names, module.static_graph)
    module._has_rebuilt_buckets = False
    for hook, state in module._comm_hooks:
        torch.distributed._register_comm_hook(module.reducer, state, hook)


def ddp(
    *,
    bucket_cap_mb: int | None = None,
    first_bucket_mib: int | None = None,
    gradient_as_bucket_view: bool | None = None,
) -> Switcher:
    return Buckets(bucket_cap_mb, first_bucket_mib, gradient_as_bucket_view)


def ddp_hook(**parameters: Any) -> Switcher:
    return Hook(parameters)
