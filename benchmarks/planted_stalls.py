"""Twenty gloo jobs of two ranks with planted stalls: is the cause right, and the cost?

    python benchmarks/planted_stalls.py [--jobs 20] [--seed 1] [--only NUMBER] [--out FILE]

A seed chooses the cause of each job's stalls, their period, their place in the period, their length and the rank that
has them. The job measures with `perf_counter` what it spent in them: the truth is the sum over the steps of the longest
time that a rank spent, divided by the number of steps. Each job is recorded by `flatout profile` and diagnosed. The
cause is right if the costliest finding of the step log names it, and the rank if it is a cause that the recorder
measures. The cost is right within 10 % of the truth.

Run it on a machine that does nothing else; each job takes about 20 s.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CAUSES = {
    "loader start": "epoch-boundary",
    "evaluation": "evaluation-stall",
    "checkpoint": "checkpoint-stall",
    "garbage collection": "garbage-collection",
    "data loading": "periodic-stall",
    "unknown": "periodic-stall",
}
MOST_ERROR = 0.10
NEEDED = 0.9  # of the jobs
NUM_STEPS = 400


def plan(number: int, seed: int) -> dict[str, Any]:
    """Return what is planted in a job."""
    chance = random.Random(seed * 1000 + number)
    cause = list(CAUSES)[number % len(CAUSES)]
    period = chance.randrange(12, 60)
    ranks = chance.choice([[0], [1], [0, 1]])
    return {
        "cause": cause,
        "period": period,
        "place": chance.randrange(period),
        "seconds": chance.uniform(0.15, 0.5),
        "ranks": [0, 1] if cause == "loader start" else ranks,
        "work": chance.randrange(2, 8),
        "num_steps": NUM_STEPS,
    }


# --- the job, run by torchrun


class Planted:
    """The planted stalls of this rank: it waits where the plan says so, and measures how long."""

    def __init__(self, planned: dict[str, Any], rank: int) -> None:
        self.cause = planned["cause"]
        self.period, self.place, self.seconds = planned["period"], planned["place"], planned["seconds"]
        self.is_on = rank in planned["ranks"]
        self.spent: dict[int, float] = {}

    def is_due(self, step: int, cause: str) -> bool:
        return self.is_on and self.cause == cause and step % self.period == self.place and step > 0

    def add(self, step: int, began: float) -> None:
        self.spent[step] = self.spent.get(step, 0.0) + time.perf_counter() - began


def job(planned: dict[str, Any], truth: Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as functional
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    planted = Planted(planned, rank)
    layers = [torch.nn.Linear(256, 256) for _ in range(planned["work"])]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(256, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    heap = (
        [[number] for number in range(int(4e6 * planned["seconds"]))] if planted.cause == "garbage collection" else []
    )
    gc.collect()
    gc.disable()
    for step, (inputs, targets) in enumerate(_batches(planted, planned["num_steps"])):
        loss = functional.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # What happens from here on is part of the next step.
        if planted.cause not in ("loader start", "data loading"):
            _stall(planted, step + 1, model, truth.parent / f"checkpoint-{rank}.pt")
    dist.destroy_process_group()
    del heap
    text = json.dumps({str(step): spent for step, spent in planted.spent.items()})
    truth.with_name(f"{truth.name}-{rank}.json").write_text(text)


def _batches(planted: Planted, num_steps: int) -> Iterator[Any]:
    import torch
    from torch.utils.data import DataLoader, Dataset

    batch_size = 16
    num_in_epoch = planted.period if planted.cause == "loader start" else num_steps

    class Data(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.is_open = False

        def __len__(self) -> int:
            return num_in_epoch * batch_size

        def __getitem__(self, index: int) -> Any:
            step, sample = divmod(index, batch_size)
            if planted.cause == "loader start" and not self.is_open:
                time.sleep(planted.seconds)
                self.is_open = True
            if sample == 0 and planted.is_due(step, "data loading"):
                time.sleep(planted.seconds)
            return torch.randn(256), index % 10

    loader = DataLoader(Data(), batch_size=batch_size, num_workers=int(planted.cause == "loader start"))
    step = 0
    while step < num_steps:
        began = time.perf_counter()
        iterator = iter(loader)
        is_start = planted.cause == "loader start"
        while step < num_steps:
            is_due = is_start or planted.is_due(step, "data loading")
            if not is_start:
                began = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                if planted.cause == "loader start":
                    planted.add(step, began)
                break
            if is_due:
                planted.add(step, began)
            is_start = False
            yield batch
            step += 1
            began = time.perf_counter()


def _stall(planted: Planted, step: int, model: Any, path: Path) -> None:
    import torch

    if not planted.is_due(step, planted.cause):
        return
    big = torch.zeros(int(6e7 * planted.seconds)) if planted.cause == "checkpoint" else None
    began = time.perf_counter()
    if planted.cause == "unknown":
        time.sleep(planted.seconds)
    elif planted.cause == "garbage collection":
        gc.collect()
    elif planted.cause == "checkpoint":
        torch.save({"model": model.module.state_dict(), "rest": big}, path)
    elif planted.cause == "evaluation":
        model.eval()
        with torch.no_grad():
            while time.perf_counter() - began < planted.seconds:
                model.module(torch.randn(16, 256))
        model.train()
    planted.add(step, began)


# --- recording and judging


def measure(number: int, seed: int, folder: Path) -> dict[str, Any]:
    """Record and diagnose one job, and return what was planted, what was true and what was found."""
    planned = plan(number, seed)
    recording, truth = folder / f"recording-{number}", folder / f"truth-{number}"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-m", "flatout", "profile", "--out", str(recording), "--", *torchrun]
    command += [str(Path(__file__).resolve()), "--planned", json.dumps(planned), "--truth", str(truth)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    if done.returncode:
        return {**planned, "error": done.stderr[-2000:]}
    spent = [json.loads(truth.with_name(f"{truth.name}-{rank}.json").read_text()) for rank in range(2)]
    return {**planned, **judged(planned, spent, recording)}


def judged(planned: dict[str, Any], spent: list[dict[str, float]], recording: Path) -> dict[str, Any]:
    from flatout.diagnose.rules import LOG_RULES
    from flatout.diagnosis_pipeline import diagnose_paths

    steps = set(spent[0]) | set(spent[1])
    true_s = sum(max(of_rank.get(step, 0.0) for of_rank in spent) for step in steps) / planned["num_steps"]
    names = {rule.NAME for rule in LOG_RULES}
    findings = [one for one in diagnose_paths([recording]).diagnosis.findings if one.name in names]
    if not findings:
        return {"true_s_per_step": true_s, "found": None, "is_cause_right": False, "is_cost_right": False}
    first = findings[0]
    cause = first.evidence.get("cause")
    is_rank_known = planned["cause"] != "unknown"
    are_ranks_right = not is_rank_known or list(first.ranks) == planned["ranks"]
    error = first.cost_s_per_step / true_s - 1
    return {
        "true_s_per_step": true_s,
        "num_stalls": len(steps),
        "found": first.name,
        "found_cause": cause,
        "found_ranks": list(first.ranks),
        "found_period": first.evidence.get("period_steps"),
        "found_s_per_step": first.cost_s_per_step,
        "error": error,
        "is_cause_right": cause == planned["cause"] and first.name == CAUSES[planned["cause"]] and are_ranks_right,
        "is_cost_right": abs(error) <= MOST_ERROR,
        "other_findings": [(one.name, one.evidence.get("cause"), one.cost_s_per_step) for one in findings[1:]],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of the only job to run")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    parser.add_argument("--planned", help=argparse.SUPPRESS)
    parser.add_argument("--truth", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.planned is not None:
        job(json.loads(arguments.planned), arguments.truth)
        return 0
    numbers = range(arguments.jobs) if arguments.only is None else [arguments.only]
    jobs = []
    for number in numbers:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(number, arguments.seed, Path(folder))
        jobs.append(result)
        print(json.dumps(result), flush=True)
    num_causes = sum(one.get("is_cause_right", False) for one in jobs)
    num_costs = sum(one.get("is_cost_right", False) for one in jobs)
    print(f"cause right in {num_causes} of {len(jobs)}, cost within {MOST_ERROR:.0%} in {num_costs}")
    if arguments.out is not None:
        result = {
            "schema": "flatout/benchmark-planted-stalls",
            "seed": arguments.seed,
            "cause_right": num_causes,
            "cost_right": num_costs,
            "jobs": jobs,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    return int(min(num_causes, num_costs) < NEEDED * len(jobs))


if __name__ == "__main__":
    sys.exit(main())
