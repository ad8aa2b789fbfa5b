"""Read how long DDP exchanges gradients after the backward pass has computed the last of them, as DDP measures it.

In: DDP modules as they are created, and optimizer steps as they end. Out: a field of the heartbeat. DDP measures its
first ten iterations and then one in a hundred, with events on a GPU, whether or not the measurement is read
(`torch/csrc/distributed/c10d/logger.cpp`). On a GPU, a measured iteration waits for the events of the one before, so it
stays as rare: one in 97, so that the measured iterations do not always coincide with the checkpoint of a round step. On
a CPU nothing waits, and it is one in 13. It reads at the same steps on all ranks, so that they report the same
iteration.
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

EVERY, FIRST = 97, 12  # steps at which to read: each step up to FIRST, then one in EVERY
EVERY_ON_CPU = 13  # the same for modules on a CPU
_NUM_ALL_TIMED = 10  # number of first iterations, each of which DDP measures


class DdpExchanges:
    """The gradient exchanges of one process."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[DistributedDataParallel]] = []
        self._per_step: int | None = None  # number of DDP iterations per optimizer step
        self.every = EVERY

    def made(self, module: DistributedDataParallel) -> None:
        self._modules.append(weakref.ref(module))
        self.every = EVERY_ON_CPU if getattr(module, "device_type", None) == "cpu" else EVERY
        module._set_ddp_runtime_logging_sample_rate(self.every)

    def is_due(self, step: int) -> bool:
        """Whether DDP's measurements are read after this step."""
        return step <= FIRST or step % self.every == 0

    def stepped(self, beat: Beat, step: int) -> None:
        """Read DDP's measurements. Call this after each step of this process that is due."""
        modules = [module for reference in self._modules if (module := reference()) is not None]
        if len(modules) != 1 or modules[0].logger is None:  # the exchanges of several modules cannot be told apart
            return
        logged = modules[0].logger._get_ddp_logging_data().ints_map
        iteration = logged.get("iteration", 0)
        if step <= 2:
            self._learn_per_step(step, iteration)
            return
        if self._per_step is None or iteration <= self._per_step:
            return
        exchange_ns, hidden_ns = logged.get("backward_comm_time"), logged.get("backward_compute_comm_overlap_time")
        if not exchange_ns or hidden_ns is None:  # 0: not measured, e.g. for a module on several GPUs
            return
        num_ranks = torch.distributed.get_world_size(modules[0].process_group)
        exposed_ns = max(exchange_ns - hidden_ns, 0)
        beat.exchanged(iteration, exposed_ns, per_step=self._per_step, num_ranks=num_ranks)

    def _learn_per_step(self, step: int, iteration: int) -> None:
        """Learn how many iterations a step has. DDP logs an iteration when the next begins, so the last is missing."""
        num = iteration + 1
        is_seen = num <= _NUM_ALL_TIMED
        if step == 1:
            self._per_step = num if is_seen else None
        elif is_seen and self._per_step is not None and num != 2 * self._per_step:
            self._per_step = None  # steps differ in their number of iterations


def hook_ddp(made: Callable[[DistributedDataParallel], object]) -> Callable[[], None] | None:
    """Call `made` with each new module; return a function that removes the hook."""
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
