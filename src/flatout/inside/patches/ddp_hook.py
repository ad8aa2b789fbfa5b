"""Compress gradients with a communication hook of DistributedDataParallel, registered before the first forward if the
script has not registered a hook.

bf16 and PowerSGD are torch's own hooks. Top-K is ours: each rank sends the largest entries of gradient plus error, all
ranks add up these entries in the same order, and the rest is the error that is added in the next step. The first step
is reduced without compression, because the buckets are rebuilt after it.
"""

from __future__ import annotations

from functools import wraps
from math import ceil
from typing import Any

import torch

from flatout.inside.patches.report import Report

_LARGEST_INDEX = 2**31 - 1


def ddp_hook(report: Report, *, hook: str = "bf16", rank: int = 1, start: int = 2, percent: int = 1) -> None:
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
        state, function = communication_hook(ddp, hook=hook, rank=rank, start=start, percent=percent)
        ddp.register_comm_hook(state, function)
        report.did("wrapped")

    @wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "_flatout_hook" not in self.__dict__:
            self.__dict__["_flatout_hook"] = True
            put_on(self)
        return original(self, *args, **kwargs)

    DistributedDataParallel.forward = forward


def communication_hook(
    ddp: Any, *, hook: str = "bf16", rank: int = 1, start: int = 2, percent: int = 1
) -> tuple[Any, Any]:
    """Return the state and the function of a hook for this DistributedDataParallel."""
    if hook == "bf16":
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

        return ddp.process_group, bf16_compress_hook
    if hook == "powersgd":
        from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

        group = ddp.process_group
        return PowerSGDState(group, matrix_approximation_rank=rank, start_powerSGD_iter=max(start, 2)), powerSGD_hook
    # DDP checks these annotations, which must be classes.
    top_k_hook.__annotations__ = {"bucket": torch.distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return TopK(ddp.process_group, percent), top_k_hook


class TopK:
    def __init__(self, group: Any, percent: int) -> None:
        self.group, self.share = group, percent / 100
        self.world_size = torch.distributed.get_world_size(group)
        self.num_steps = 0
        self.errors: dict[int, torch.Tensor] = {}  # by bucket index

    def error(self, index: int, gradient: torch.Tensor) -> torch.Tensor | None:
        error = self.errors.get(index)
        return error if error is not None and error.shape == gradient.shape else None


def top_k_hook(state: TopK, bucket: Any) -> Any:
    gradient = bucket.buffer()
    is_plain = state.num_steps == 0 or gradient.dtype != torch.float32 or gradient.numel() > _LARGEST_INDEX
    state.num_steps += bool(bucket.is_last())
    if is_plain:
        gradient.div_(state.world_size)
        work = torch.distributed.all_reduce(gradient, group=state.group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])
    error = state.error(bucket.index(), gradient)
    whole = gradient.clone() if error is None else gradient + error
    count = max(ceil(state.share * whole.numel()), 1)
    indices = torch.topk(whole.abs(), count, sorted=False).indices
    sent = torch.cat([whole[indices], indices.to(torch.int32).view(torch.float32)])
    whole[indices] = 0
    state.errors[bucket.index()] = whole
    gathered = torch.empty(state.world_size * 2 * count, dtype=torch.float32, device=gradient.device)
    work = torch.distributed.all_gather_into_tensor(gathered, sent, group=state.group, async_op=True)

    def add_up(_: Any) -> torch.Tensor:
        gradient.zero_()
        for part in gathered.view(state.world_size, 2, count):
            # The indices of one rank are unique: no two additions race, and all ranks get the same bits.
            places = part[1].contiguous().view(torch.int32).long()
            gradient[places] = gradient[places] + part[0]
        return gradient.div_(state.world_size)

    return work.get_future().then(add_up)
