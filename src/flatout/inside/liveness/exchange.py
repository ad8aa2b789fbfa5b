"""How long a rank's gradients are exchanged after its backward pass has computed the last of them, as DDP times it.

In: DDP modules as they are made, and optimizer steps as they end. Out: numbers of the heartbeat. DDP times its first
ten iterations and one in a hundred, whether anybody reads it or not (`torch/csrc/distributed/c10d/logger.cpp`), with
events on a GPU. It is made one in 97, so that it is not always the one beside a round step's checkpoint, and read at
the same steps on all ranks, so that they tell of the same iteration.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from flatout.inside.liveness.beat import Beat
from flatout.inside.log import guarded

EVERY, FIRST = 97, 12  # steps; the first ones are read each
_TIMED_EACH = 10  # of DDP's iterations


class DdpExchanges:
    """Of one process."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[DistributedDataParallel]] = []
        self._per_step: int | None = None  # DDP's iterations in an optimizer step

    def made(self, module: DistributedDataParallel) -> None:
        self._modules.append(weakref.ref(module))
        module._set_ddp_runtime_logging_sample_rate(EVERY)

    def stepped(self, beat: Beat, step: int) -> None:
        """`step`: of this process, from 1. Call it at each that is up to FIRST or a multiple of EVERY."""
        modules = [module for one in self._modules if (module := one()) is not None]
        if len(modules) != 1 or modules[0].logger is None:  # of several, it is not known when each was exchanged
            return
        found = modules[0].logger._get_ddp_logging_data().ints_map
        iteration = found.get("iteration", 0)
        if step <= 2:
            self._learn_per_step(step, iteration)
        if self._per_step is None or step <= 2 or iteration <= self._per_step:
            return
        both_ns, hidden_ns = found.get("backward_comm_time"), found.get("backward_compute_comm_overlap_time")
        if not both_ns or hidden_ns is None:  # 0: it was not timed, as of a module on several GPUs
            return
        size = torch.distributed.get_world_size(modules[0].process_group)
        beat.exchanged(iteration, max(both_ns - hidden_ns, 0), per_step=self._per_step, num_ranks=size)

    def _learn_per_step(self, step: int, iteration: int) -> None:
        """An iteration is in DDP's log when the next one begins: after step n, the last one is missing."""
        num = iteration + 1
        is_seen = num <= _TIMED_EACH
        if step == 1:
            self._per_step = num if is_seen else None
        elif is_seen and self._per_step is not None and num != 2 * self._per_step:
            self._per_step = None  # not the same number in each step


def hook_ddp(made: Callable[[DistributedDataParallel], object]) -> Callable[[], None] | None:
    """`made` is called with each new module; what undoes it."""
    if not torch.distributed.is_available():
        return None
    original = DistributedDataParallel.__init__
    note = guarded(made)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        note(self)

    DistributedDataParallel.__init__ = init

    def undo() -> None:
        DistributedDataParallel.__init__ = original

    return undo
