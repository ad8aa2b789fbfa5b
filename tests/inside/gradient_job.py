"""A training in the warm-up of its learning rate, with right or wrong gradients. Usage: gradient_job.py HOW [FAULT]

HOW: `alone`, `ranks` (DistributedDataParallel over gloo), `passes` (that with two passes a step), `sharded`
(fully_shard), `whole` (the same model with DistributedDataParallel), `scaler` (a GradScaler), `closure`, or `sparse`;
as a second word how gradients are clipped, see `clip`. FAULT: see `spoil` and `wrapped`, or `unreduced`; `unseeded` as
a second word or alone. Prints the losses and the sums of the weights, to the last bit. Knows nothing of Flatout.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DataLoader, TensorDataset

NUM_STEPS, NUM_WARMING = 12, 2000


def model_of(how: str) -> nn.Module:
    """The bias before the batch norm has a gradient of rounding errors only."""
    convolutions = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    layers = [nn.Linear(32, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)]
    if how == "sparse":
        return nn.Sequential(nn.EmbeddingBag(64, 32, mode="sum", sparse=True), *layers)
    return nn.Sequential(*([] if how in ("sharded", "whole") else convolutions), *layers)


def wrapped(model: nn.Module, how: str, fault: str) -> nn.Module:
    if how in ("ranks", "passes", "whole"):
        made = nn.parallel.DistributedDataParallel(model)
        if fault == "one rank":  # which keeps its own
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            def hook(state, bucket):  # no annotations: DDP takes them for classes, and they are texts here
                own = bucket.buffer().clone()
                reduced = allreduce_hook(None, bucket)
                return reduced.then(lambda future: own if dist.get_rank() == 1 else future.value())

            made.register_comm_hook(None, hook)
        return made
    if how == "sharded":
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # before torch 2.6
            from torch.distributed._composable.fsdp import fully_shard

        fully_shard(model)
    return model


def spoil(model: nn.Module, fault: str) -> None:
    parameters = list(model.parameters())
    if fault in ("half", "doubled"):
        for parameter in parameters:
            parameter.grad *= 0.5 if fault == "half" else 2.0
    elif fault.startswith("dropped"):
        parameters[-1].grad = None
    elif fault == "none at all":
        for parameter in parameters:
            parameter.grad = None


def clip(model: nn.Module, way: str) -> None:
    """So that little is left of any gradient."""
    parameters = list(model.parameters())
    if way == "clipped":
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    elif way == "named":
        clip_grad_norm_(parameters, 0.01, foreach=True)
    elif way == "layers":
        for layer in model.modules():
            if own := list(layer.parameters(recurse=False)):
                nn.utils.clip_grad.clip_grad_norm_(own, 0.002, foreach=False)
    elif way == "each":
        for parameter in parameters:
            clip_grad_norm_(parameter, 1e-9)
    elif way == "part":
        clip_grad_norm_((one for one in parameters[:-1]), 1e-4, error_if_nonfinite=True)
    elif way == "twice":
        clip_grad_norm_(iter(parameters), 0.01, norm_type=float("inf"))
        clip_grad_norm_(parameters[2:], max_norm=0.001)
    elif way == "apart":  # as torchtitan
        total = nn.utils.get_total_norm([one.grad for one in parameters])
        nn.utils.clip_grads_with_norm_(model.parameters(), max_norm=0.01, total_norm=total)
    elif way == "reused":  # what is returned is the script's
        nn.utils.clip_grad_norm_(model.parameters(), 0.01).zero_()


def main(how: str, fault: str = "") -> None:
    how, _, way = how.partition(" ")
    if "RANK" in os.environ:
        atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see tests/jobs/ends_later.py
        dist.init_process_group("gloo")
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))  # never freed, see jobs/ends_later.py
    rank = dist.get_rank() if dist.is_initialized() else 0
    if "unseeded" in fault:
        torch.seed()  # processes that are forked would have the same numbers
    else:
        torch.manual_seed(0)
    model = wrapped(model_of(how), how, fault)
    if "unseeded" not in fault:
        torch.manual_seed(1 + rank)
    shape = (32,) if how in ("sharded", "whole") else (3, 8, 8)
    inputs = torch.randint(0, 64, (256, 6)) if how == "sparse" else torch.randn(256, *shape)
    loader = DataLoader(TensorDataset(inputs, torch.randint(0, 4, (256,))), batch_size=8)
    kind = torch.optim.SGD if how == "sparse" else torch.optim.AdamW
    optimizer = kind(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=how == "scaler")
    num_passes = 2 if how == "passes" else 1
    batches, losses = iter(loader), []
    for step in range(NUM_STEPS):
        optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1) / NUM_WARMING

        def passes() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=False)
            total = torch.zeros(())
            for _ in range(num_passes):
                x, y = next(batches)
                if fault.startswith("unreduced"):
                    model.require_backward_grad_sync = False
                loss = cross_entropy(model(x), y) / num_passes
                scaler.scale(loss).backward()
                total += loss.detach()
            spoil(model, fault)
            if way and how == "scaler":
                scaler.unscale_(optimizer)
            clip(model, way)
            return total

        if how == "closure":
            total = optimizer.step(passes)
        else:
            total = passes()
            scaler.step(optimizer)
            scaler.update()
        losses.append(float(total))
    if rank == 0:
        print("losses", *[loss.hex() for loss in losses])
        weights = [one.to_local() if how == "sharded" else one for one in model.parameters()]
        print("weights", *[float(one.detach().double().sum()).hex() for one in weights], torch.rand(()).item().hex())
    if dist.is_initialized():
        dist.barrier()


if __name__ == "__main__":
    main(*sys.argv[1:])
