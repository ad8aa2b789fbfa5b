"""How many jobs a second a replay gets through, beside a public simulator on the same jobs.

    python benchmarks/schedule_replay.py philly.csv.gz [--rounds 5] [--pai FOLDER [--pai-jobs 1000]] [--out FILE]

philly.csv.gz is Sia's extract of 82,247 jobs, on 64 nodes of 8 GPUs. FOLDER holds the Python files of Alibaba's PAI
simulator (alibaba/clusterdata, cluster-trace-gpu-v2020/simulator); it gets the first jobs of the trace with their
own times of submission, as one node of 512 GPUs in ticks of a
minute, and the same jobs are replayed here. matplotlib, which it imports for
figures that it doesn't draw here, is replaced by an empty module. Within a round everything runs in turn, on one
thread; wall time and processor time are given, because other work may share the machine. Reading the file isn't timed.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flatout.schedule.cluster import uniform
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.load import philly
from flatout.schedule.replay import timed_run

POLICIES = ("fifo", "easy", "easy-oracle", "skip", "las", "flatout")


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - processor


def pai_run(folder: Path, jobs: Sequence[ClusterJob], scratch: Path) -> Callable[[], object]:
    """A run of the PAI simulator: FIFO, its own event loop in ticks."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
        sys.modules["matplotlib"] = types.ModuleType("matplotlib")
        sys.modules["matplotlib.pyplot"] = types.ModuleType("matplotlib.pyplot")
        sys.modules["matplotlib"].pyplot = sys.modules["matplotlib.pyplot"]  # type: ignore[attr-defined]
    from simulator import Simulator

    path, first = scratch / "jobs.csv", jobs[0].submit_s
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["job_id", "user", "num_gpu", "num_cpu", "submit_time", "duration", "num_inst"])
        for number, job in enumerate(jobs):
            submit = int(job.submit_s - first)
            writer.writerow([number, f"u{job.team}", job.num_gpus, 0, submit, int(job.duration_s), 1])

    def run() -> None:
        simulation = Simulator(
            csv_file=path, alloc_policy=8, preempt_policy=2, sort_node_policy=0, num_nodes=1, random_seed=1,
            max_time=int(1e9), num_spare_node=0, pattern=0, hetero=False, num_gpus=512, num_cpus=10**6,
            delta=60, arrival_rate=-1, num_jobs_limit=len(jobs), log_file=scratch / "log",
        )  # fmt: skip
        found = simulation.simulator_go(repeat=1)
        print("PAI simulator (jobs, mean completion, mean wait, makespan):", found, file=sys.stderr)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--pai", type=Path)
    parser.add_argument("--pai-jobs", type=int, default=1000)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    jobs = philly.load(given.trace).jobs
    few = jobs[: given.pai_jobs]
    work: dict[str, tuple[int, Callable[[], object]]] = {
        name: (len(jobs), lambda name=name: timed_run(jobs, uniform(64, 8), name, Assumptions()))
        for name in given.policy or POLICIES
    }
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        if given.pai:
            work["pai"] = (len(few), pai_run(given.pai, few, Path(scratch)))
            work["fifo, the same jobs"] = (len(few), lambda: timed_run(few, uniform(64, 8), "fifo", Assumptions()))
        rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in work}
        for _ in range(given.rounds):
            for name, (_, run) in work.items():
                rounds[name].append(timed(run))
    for name, (count, _) in work.items():
        rates = [[count / max(1e-9, seconds) for seconds in column] for column in zip(*rounds[name], strict=True)]
        results[name] = {
            kind: {"median": statistics.median(each), "least": min(each), "most": max(each)}
            for kind, each in zip(("jobs_per_s", "jobs_per_processor_s"), rates, strict=True)
        }
        results[name]["jobs"] = count
        wall, processor = results[name]["jobs_per_s"], results[name]["jobs_per_processor_s"]
        print(
            f"{name:22s}{count:8,} jobs  {wall['median']:12,.0f} jobs/s ({wall['least']:,.0f} to {wall['most']:,.0f})"
            f"  {processor['median']:12,.0f} a processor second"
        )
    if given.out:
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
