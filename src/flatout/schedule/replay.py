"""Replay a job history under one or several policies; the composition behind `flatout schedule replay`."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from flatout.errors import InputError
from flatout.records.replay import PolicyReplay, ReplayReport
from flatout.schedule import rigid
from flatout.schedule.cluster import Cluster
from flatout.schedule.differences import differences, window_edges
from flatout.schedule.engine import FailureModel, Simulation, SimulationResult
from flatout.schedule.jobs import Assumptions, ClusterJob, JobHistory
from flatout.schedule.measures import Columns, measure, policy_samples
from flatout.schedule.policies.fifo import Fifo
from flatout.schedule.policies.names import POLICIES, make
from flatout.schedule.pool import Pool

STARVED_AFTER_S = 14 * 86_400.0


def replay(
    loaded: JobHistory,
    cluster: Cluster,
    policies: Sequence[str],
    *,
    assumptions: Assumptions | None = None,
    failures: FailureModel | None = None,
    num_seeds: int = 1,
    starved_after_s: float = STARVED_AFTER_S,
    progress: Callable[[int, int], None] | None = None,
) -> ReplayReport:
    """All policies on the same jobs and the same failures. Measures are of the first seed, differences of all."""
    given = assumptions or Assumptions()
    jobs, left_out = runnable(loaded, cluster)
    results: list[PolicyReplay] = []
    outcomes = []
    submit = np.array([job.submit_s for job in jobs])
    edges = window_edges(submit)
    seeds = range(num_seeds if failures else 1)
    runs = len(policies) * len(seeds)
    for place, name in enumerate(policies):
        of_seeds = []
        for seed in seeds:
            drawn = msgspec.structs.replace(failures, seed=failures.seed + seed) if failures else None
            before = (place * len(seeds) + seed) * len(jobs)

            def show(done: int, _: int, before: int = before) -> None:
                assert progress is not None
                progress(before + done, runs * len(jobs))

            run, seconds = timed_run(jobs, cluster, name, given, drawn, show if progress else None)
            columns = Columns(run)
            of_seeds.append(policy_samples(run, columns, edges))
            if seed == 0:
                kind = POLICIES[name]
                results.append(
                    measure(
                        run,
                        kind.summary,
                        seconds=seconds,
                        starved_after_s=starved_after_s,
                        is_oracle=kind.is_oracle,
                        columns=columns,
                    )
                )
        outcomes.append(of_seeds)
    span = max(float(submit.max() - submit.min()), 1e-9)
    work = sum(job.num_gpus * job.gpu_share * job.duration_s for job in jobs)
    return ReplayReport(
        source=loaded.source,
        num_gpus=cluster.num_gpus,
        num_nodes=len(cluster.nodes),
        span_s=span,
        load=work / (cluster.num_gpus * span) if span > 1 else None,
        checkpoint_s=given.checkpoint_s,
        restart_s=given.restart_s,
        starved_after_s=starved_after_s,
        left_out=left_out,
        assumptions=(*loaded.notes, *_assumptions(jobs, given, failures)),
        policies=tuple(results),
        differences=differences(policies, submit, outcomes) if len(policies) > 1 else (),
    )


def timed_run(
    jobs: Sequence[ClusterJob],
    cluster: Cluster,
    name: str,
    assumptions: Assumptions,
    failures: FailureModel | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[SimulationResult, float]:
    """A run, and the seconds that it took. No garbage is in cycles, so the collector rests meanwhile."""
    began = time.perf_counter()
    was_on = gc.isenabled()
    gc.disable()
    try:
        if name == Fifo.name and failures is None and rigid.applies(jobs):
            return rigid.fifo(jobs, cluster), time.perf_counter() - began
        simulation = Simulation(
            jobs,
            cluster,
            make(name, jobs, cluster),
            assumptions=assumptions,
            failures=failures,
            progress=progress,
        )
        return simulation.run(), time.perf_counter() - began
    finally:
        if was_on:
            gc.enable()


def runnable(loaded: JobHistory, cluster: Cluster) -> tuple[tuple[ClusterJob, ...], dict[str, int]]:
    """The jobs that the empty cluster can hold, and how many were left out and why."""
    pool = Pool(cluster.nodes)
    fits: dict[tuple[int, tuple[str, ...]], bool] = {}
    jobs, left_out = [], dict(loaded.left_out)
    for job in loaded.jobs:
        key = (job.num_gpus, job.gpu_types)
        if key not in fits:
            nodes = cluster.nodes
            mask = (
                sum(1 << n for n, node in enumerate(nodes) if node.gpu_type in job.gpu_types) if job.gpu_types else -1
            )
            fits[key] = pool.fits(job.num_gpus, mask)
        if fits[key]:
            jobs.append(job)
        else:
            why = "asks for more than the cluster has (GPUs on nodes of a type it may use)"
            left_out[why] = left_out.get(why, 0) + 1
    if not jobs:
        reasons = "; ".join(f"{count:,}: {why}" for why, count in left_out.items()) or "the file has no rows"
        raise InputError(f"no job is left to replay ({reasons})", hint="check --nodes, --gpus-per-node and the file")
    return tuple(jobs), left_out


def _assumptions(jobs: Sequence[ClusterJob], given: Assumptions, failures: FailureModel | None) -> list[str]:
    """What the history doesn't say, and the replay takes for granted."""
    found = []
    if any(job.checkpoint_s is None for job in jobs):
        found.append(f"jobs write a checkpoint every {given.checkpoint_s:g} s of work")
    if any(job.restart_s is None for job in jobs):
        found.append(f"a job that was stopped needs {given.restart_s:g} s to start again")
    if failures is not None:
        found.append(
            f"{failures.per_1000_node_days:g} failures per 1,000 node-days, {failures.repair_s / 3600:g} h to repair"
        )
    found.append("a job of at most a node's GPUs runs on one node, a wider one on whole nodes")
    return found
