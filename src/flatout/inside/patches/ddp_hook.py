"""Compress gradients with a communication hook of DistributedDataParallel, registered before the first forward if the
script has not registered a hook.

The hooks are those of `gradient_hooks`. The model holds the hook's state for the checkpoints of `flatout.checkpoint`,
which save it; a state that was restored before the first forward waits on the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import wraps
from typing import Any

import torch

from flatout.inside.gradient_hooks import GradientHook, make_hook
from flatout.inside.patches.report import Report
from flatout.inside.protocol import GRADIENT_HOOK, GRADIENT_HOOK_STATE


def ddp_hook(report: Report, **parameters: Any) -> None:
    if not torch.distributed.is_available():
        report.note("this torch has no torch.distributed")
        return
    from torch.nn.parallel import DistributedDataParallel

    report.waits("no DistributedDataParallel was trained")
    original = DistributedDataParallel.forward

    @report.guarded
    def put_on(ddp: Any) -> None:
        if ddp._comm_hooks:
            report.note("the script has its own hook")
            return
        state, function = make_hook(ddp, **parameters)
        _restore(report, state, ddp.module.__dict__.pop(GRADIENT_HOOK_STATE, None))
        ddp.register_comm_hook(state, function)
        ddp.module.__dict__[GRADIENT_HOOK] = state
        report.did("wrapped")

    @wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "_flatout_hook" not in self.__dict__:
            self.__dict__["_flatout_hook"] = True
            put_on(self)
        return original(self, *args, **kwargs)

    DistributedDataParallel.forward = forward


def _restore(report: Report, hook: GradientHook, saved: tuple[Mapping[str, Any], bool] | None) -> None:
    """Give the hook the state that a checkpoint had, if it is of this kind of hook."""
    if saved is None:
        return
    state, is_own = saved
    try:
        hook.load_state_dict(state, is_own=is_own)
    except ValueError as error:
        report.note(f"the hook starts without its state: {error}")
        return
    report.did("restored")
