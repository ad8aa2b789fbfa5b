"""Send gradients as bf16 or fp16: half of the bytes, and nothing to keep between steps.

The arithmetic is that of torch's own hooks. DDP refuses those without NCCL, by their names, although gloo adds up both
types.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from flatout.inside.gradient_hooks.gradient_hook import Gradient, GradientHook, annotate

_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class HalfHook(GradientHook):
    def __init__(self, ddp: Any, kind: str) -> None:
        super().__init__(ddp)
        self.kind = kind
        self._type = _TYPES[kind]

    def reduce(self, buffer: torch.Tensor, gradients: list[Gradient]) -> None:
        del gradients
        half = buffer.to(self._type).div_(self.world_size)  # divided first, so that the sum does not overflow
        dist.all_reduce(half, group=self.group)
        buffer.copy_(half)


@annotate
def bf16_hook(state: HalfHook, bucket: Any) -> Any:
    return state.run(bucket)


@annotate
def fp16_hook(state: HalfHook, bucket: Any) -> Any:
    return state.run(bucket)
