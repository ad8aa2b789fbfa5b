"""What policies reach on public histories: completion times on Philly, useful GPUs where many are held idle, fragments
on openb.

    python benchmarks/schedule_targets.py philly FOLDER [--out FILE]
    python benchmarks/schedule_targets.py idle FOLDER [--out FILE]
    python benchmarks/schedule_targets.py openb FOLDER [--out FILE]

FOLDER holds philly.csv.gz (Sia's extract) and alibaba2023_openb_*.csv.gz (clusterdata v2023). Nothing is timed here.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout.schedule.cluster import uniform
from flatout.schedule.fragments import FragmentPool
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.load import openb, philly
from flatout.schedule.measures import Columns
from flatout.schedule.pool import Pool
from flatout.schedule.replay import replay, runnable, timed_run
from flatout.schedule.result import SimulationResult

HOUR = 3600.0
PHILLY_POLICIES = ("fixed", "fifo", "skip", "easy", "las", "flatout", "srtf-oracle")
IDLE_POLICIES = ("fifo", "skip", "flatout")
USEFUL_SHARE = 0.45
IDLE_NODES = 12  # the work alone of a quarter of the jobs is 97 % of them


def of_philly(folder: Path) -> dict[str, Any]:
    """All policies at 64 nodes x 8, against FIFO with fixed shares."""
    result = replay(philly.load(folder / "philly.csv.gz"), uniform(64, 8), PHILLY_POLICIES)
    kept = (
        *("policy", "jct_mean_s", "jct_p50_s", "jct_p99_s", "longest_wait_s", "num_starved", "preemptions"),
        *("lost_gpu_hours", "restart_gpu_hours", "makespan_s", "utilization", "goodput", "jobs_per_s", "notes"),
    )
    policies = [{name: getattr(policy, name) for name in kept} for policy in result.policies]
    return {"policies": policies, "differences": [msgspec.to_builtins(one) for one in result.differences]}


def with_idle_phases(jobs: Sequence[ClusterJob], seed: int) -> list[ClusterJob]:
    """The same work, held idle in between and after it so that 45 % of the GPU-time held is useful.

    How long stretches of idleness are isn't published; here a job's are in proportion to its work, one between two
    parts of it and one after, at random. So most idle GPU-hours are in long stretches of long jobs.
    """
    draw = random.Random(seed)
    found = []
    for job in jobs:
        idle = job.duration_s * (1 / USEFUL_SHARE - 1)
        between, part = idle * draw.random(), job.duration_s * draw.random()
        phases = (part, between, job.duration_s - part, idle - between)
        found.append(msgspec.structs.replace(job, duration_s=sum(phases), phases=phases))
    return found


def of_idle(folder: Path) -> dict[str, Any]:
    """Useful shares on a quarter of Philly (another one for each seed) with idle phases, where GPUs are short."""
    cluster = uniform(IDLE_NODES, 8)
    jobs, _ = runnable(philly.load(folder / "philly.csv.gz"), cluster)
    rows = []
    for seed in (0, 1, 2):
        for name in IDLE_POLICIES:
            run, _ = timed_run(with_idle_phases(jobs[seed::4], seed), cluster, name, Assumptions())
            rows.append({"nodes": IDLE_NODES, "seed": seed, "policy": name, **useful_shares(run)})
            print(rows[-1], flush=True)
    return {"rows": rows}


def useful_shares(run: SimulationResult) -> dict[str, float]:
    """Of the GPU-time held, and of all GPU-time while jobs were submitted, after a tenth of it to fill the cluster."""
    columns = Columns(run)
    held, useful = columns.held * columns.gpus, columns.useful * columns.gpus
    first, last = float(columns.submit.min()), float(columns.submit.max())
    first += (last - first) / 10
    inside = (columns.end.clip(first, last) - columns.start.clip(first, last)) / columns.held.clip(1e-9)
    capacity = run.cluster.num_gpus * (last - first)
    return {
        "useful_of_held": float(useful.sum() / held.sum()),
        "held_of_all": float((held * inside).sum() / capacity),
        "useful_of_all": float((useful * inside).sum() / capacity),
        "jct_mean_h": float((columns.finish - columns.submit).mean() / HOUR),
    }


def of_openb(folder: Path) -> dict[str, Any]:
    """Pods drawn with replacement arrive, and none leaves, until 1.2 times the cluster's GPUs were asked for; a pod for
    which there is no room is turned away. What is then free can't be used (Weng et al., ATC'23, section 6)."""
    cluster = openb.nodes(folder / "alibaba2023_openb_node_list_gpu_node.csv.gz")
    pods = all_pods(folder / "alibaba2023_openb_pod_list_default.csv.gz")
    masks = {
        types: sum(1 << n for n, node in enumerate(cluster.nodes) if node.gpu_type in types) if types else -1
        for types in {pod.gpu_types for pod in pods}
    }
    rows = []
    for seed in range(5):
        draw = random.Random(seed)
        drawn: list[ClusterJob] = []
        while sum(pod.num_gpus * pod.gpu_share for pod in drawn) < 1.2 * cluster.num_gpus:
            drawn += draw.choices(pods, k=500)
        for name, pool in (("best fit", Pool(cluster.nodes)), ("fgd", FragmentPool(cluster.nodes))):
            rows.append({"seed": seed, "placement": name, **filled(pool, drawn, masks, cluster.num_gpus)})
            print(rows[-1], flush=True)
    return {"num_gpus": cluster.num_gpus, "rows": rows}


def all_pods(path: Path) -> list[ClusterJob]:
    """Pods with GPUs, those never scheduled too: only what they ask for is used."""
    from flatout.schedule.load.rows import rows

    found = []
    for _, (gpus, milli, spec) in rows(path, ("num_gpu", "gpu_milli", "gpu_spec")):
        if int(gpus):
            share = min(1.0, float(milli) / 1000) if int(gpus) == 1 else 1.0
            types = tuple(spec.split("|")) if spec else ()
            found.append(ClusterJob(submit_s=0, num_gpus=int(gpus), duration_s=1, gpu_share=share, gpu_types=types))
    return found


def filled(
    pool: Pool, pods: Sequence[ClusterJob], masks: dict[tuple[str, ...], int], num_gpus: int
) -> dict[str, float]:
    """Place the pods in turn. `unavoidable`: GPUs next to the shares above a half that were placed, which only smaller
    shares could use, less all the smaller shares that were placed; a bound that no placement goes below."""
    asked = given = 0.0
    placed: list[int] = []
    at_capacity: float | None = None
    first_refused: float | None = None
    for pod in pods:
        milli = round(pod.gpu_share * 1000)
        if isinstance(pool, FragmentPool):
            pool.tasks.see(pod.num_gpus, milli)
        mask = masks[pod.gpu_types]
        place = pool.take(pod.num_gpus, mask) if milli == 1000 else pool.take_share(milli, mask)
        asked += pod.num_gpus * pod.gpu_share
        if place is not None:
            placed.append(milli if pod.num_gpus == 1 else 1000)
            given += pod.num_gpus * pod.gpu_share
        elif first_refused is None:
            first_refused = asked / num_gpus
        if at_capacity is None and asked >= num_gpus:
            at_capacity = given
    assert at_capacity is not None
    return {
        "free_gpus_when_all_were_asked_for": num_gpus - at_capacity,
        "free_gpus_at_the_end": num_gpus - given,
        "unavoidable": unavoidable(placed),
        "first_refused_at": first_refused or 1.2,
    }


def unavoidable(placed: Sequence[int]) -> float:
    rests = [1000 - milli for milli in placed if 500 < milli < 1000]
    return max(
        (sum(rest for rest in rests if rest <= most) - sum(milli for milli in placed if milli <= most)) / 1000
        for most in sorted(set(rests))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("philly", "idle", "openb"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    result = {"philly": of_philly, "idle": of_idle, "openb": of_openb}[given.what](given.folder)
    text = json.dumps(result, indent=1)
    if given.out:
        given.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
