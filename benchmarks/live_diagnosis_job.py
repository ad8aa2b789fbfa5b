"""The job of `live_jobs.py`: a DDP training on gloo with one planted fault from a given step on.

    torchrun --standalone --nproc-per-node 4 benchmarks/live_diagnosis_job.py '{"fault": "slow", "rank": 2, ...}'

Computing is a sleep, so that the ranks of a busy machine do not compete for its cores: what is planted is then what
happens.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

LOADING_SHARE = 0.1  # of the step, on all ranks


class Batches(IterableDataset[torch.Tensor]):
    """Makes a batch in a tenth of the step; with the fault `loader`, longer and longer from the given step on."""

    def __init__(self, planted: dict[str, Any]) -> None:
        self.planted = planted

    def __iter__(self) -> Any:
        planted = self.planted
        for step in range(planted["num_steps"]):
            load_s = LOADING_SHARE * planted["step_s"]
            if planted["fault"] == "loader":
                num_since = max(step - planted["at"], 0)
                load_s += planted["step_s"] * 0.01 * num_since / 100
            time.sleep(load_s)
            yield torch.randn(planted["batch"], planted["width"])


class Compute(nn.Module):
    """Sleeps as long as this rank computes."""

    def __init__(self, planted: dict[str, Any], rank: int) -> None:
        super().__init__()
        self.step, self.planted = 0, planted
        self.is_slow = planted["fault"] == "slow" and rank == planted["rank"]

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        planted = self.planted
        compute_s = (1 - LOADING_SHARE) * planted["step_s"]
        if self.is_slow and self.step >= planted["at"]:
            compute_s += planted["share"] * planted["step_s"]
        time.sleep(compute_s)
        self.step += 1
        return batch


def main() -> None:
    planted = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = nn.Sequential(Compute(planted, rank), nn.Linear(planted["width"], planted["width"]))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    kept = []
    for step, batch in enumerate(DataLoader(Batches(planted), batch_size=None)):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        if planted["fault"] == "memory" and rank == planted["rank"] and step >= planted["at"]:
            kept.append(torch.ones(1 << 18))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
