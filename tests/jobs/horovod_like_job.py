"""Train as users of Horovod do, without Horovod: ranks of mpirun, no process group, an optimizer wrapped at run time.

As `hvd.DistributedOptimizer` does, a class is made from that of the user's optimizer, whose `step` first waits for the
gradients of all ranks and then calls the original one. Here the wait is a pause. Usage: horovod_like_job.py [STEPS]
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import nn


def distributed_optimizer(optimizer: torch.optim.Optimizer) -> Any:
    """Return the optimizer as one of a new class with the same name."""

    def init(self: Any, params: Any) -> None:
        super(self.__class__, self).__init__(params)

    def step(self: Any, closure: Any = None) -> Any:
        time.sleep(0.005)  # where Horovod waits for the gradients
        return super(self.__class__, self).step(closure)

    made = type(optimizer.__class__.__name__, (optimizer.__class__,), {"__init__": init, "step": step})
    return made(optimizer.param_groups)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(32, 1)
    optimizer = distributed_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 40):
        optimizer.zero_grad()
        model(torch.randn(64, 32)).square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
