"""Reduce the gradients of a DistributedDataParallel in fewer bytes, by a hook of its reducer.

`make_hook` returns a state and a function for `register_comm_hook`. All that a state keeps between steps is kept by the
parameter's name, never by the bucket: DDP divides gradients into other buckets after its first step, and so does a
training that resumes. `state_dict` and `load_state_dict` carry it through a checkpoint.
"""

from __future__ import annotations

from typing import Any

from flatout.inside.gradient_hooks.gradient_hook import GradientHook
from flatout.inside.gradient_hooks.half import HalfHook, bf16_hook, fp16_hook
from flatout.inside.gradient_hooks.int8 import Int8Hook, int8_hook
from flatout.inside.gradient_hooks.power_sgd import PowerSgdHook, power_sgd_hook
from flatout.inside.gradient_hooks.top_k import TopKHook, top_k_hook

__all__ = ["GradientHook", "make_hook"]


def make_hook(
    ddp: Any, *, hook: str = "bf16", rank: int = 1, start: int = 2, percent: int = 1, momentum: bool = False
) -> tuple[GradientHook, Any]:
    """Return the state and the function of a hook for this DistributedDataParallel. All ranks must call it together."""
    match hook:
        case "bf16":
            return HalfHook(ddp, hook), bf16_hook
        case "fp16":
            return HalfHook(ddp, hook), fp16_hook
        case "int8":
            return Int8Hook(ddp), int8_hook
        case "powersgd":
            return PowerSgdHook(ddp, rank=rank, start=start), power_sgd_hook
        case "topk":
            return TopKHook(ddp, percent=percent, corrects_momentum=momentum), top_k_hook
    raise ValueError(f"there is no hook `{hook}`")
