"""What is read of DDP's own timing: how many iterations a step has, and nothing where it is not one exchange a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

SOURCE = str(Path(package.__file__).parents[1])
JOB = """\
import atexit, json, sys, time
import torch, torch.distributed as dist
from contextlib import nullcontext
from torch.nn.parallel import DistributedDataParallel as DDP
from flatout.inside.liveness.exchange import EVERY_ON_CPU, DdpExchanges, hook_ddp

class Beat:
    def exchanged(self, *given, **more):
        seen.append([step, *given, more["per_step"], more["num_ranks"]])

seen, kind = [], sys.argv[1]
exchanges = DdpExchanges()
original = DDP.__init__
undo = hook_ddp(exchanges.made)
atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
models = [DDP(torch.nn.Linear(64, 64)) for _ in range(2 if kind == "two" else 1)]
undo()
assert DDP.__init__ is original
for step in range(1, 4 * EVERY_ON_CPU + 1):
    num = {"accumulates": 3, "no_sync": 3, "irregular": 1 + step % 2}.get(kind, 1)
    for part in range(num):
        for model in models:
            with model.no_sync() if kind == "no_sync" and part < num - 1 else nullcontext():
                model(torch.ones(2, 64)).sum().backward()
    if exchanges.is_due(step):
        exchanges.stepped(Beat(), step)
print(json.dumps(seen))
dist.destroy_process_group()
"""


def seen(kind: str) -> list[list[Any]]:
    done = subprocess.run(
        [sys.executable, "-c", JOB, kind],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.mark.parametrize(("kind", "per_step"), [("plain", 1), ("no_sync", 1), ("accumulates", 3)])
def test_iterations_of_a_step_are_counted(kind: str, per_step: int) -> None:
    found = seen(kind)
    assert {row[3] for row in found} == {per_step} and {row[4] for row in found} == {1}
    assert all(row[2] > 0 for row in found), "an exchange takes time, if only with itself"
    # The last iteration is in DDP's log only once the next one has begun.
    iterations = per_step * 52 - 1
    assert found[-1][:2] == [52, iterations // 13 * 13]


@pytest.mark.parametrize("kind", ["two", "irregular"])
def test_nothing_is_told_where_a_step_is_not_one_exchange(kind: str) -> None:
    assert seen(kind) == []
