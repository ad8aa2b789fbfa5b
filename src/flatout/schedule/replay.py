"""Replay a job history under one or several policies; `flatout schedule replay` calls this.

In: a `JobHistory`, a cluster and names of policies. Out: a `ReplayReport`. It writes no files and prints nothing.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from flatout.errors import InputError
from flatout.records.replay import PolicyReplay, ReplayReport
from flatout.schedule import rigid
from flatout.schedule.cluster import Cluster
from flatout.schedule.differences import differences, window_edges
from flatout.schedule.engine import FailureModel, Simulation
from flatout.schedule.jobs import Assumptions, ClusterJob, JobHistory
from flatout.schedule.measures import Columns, PolicySamples, measure, policy_samples
from flatout.schedule.policies.fifo import Fifo
from flatout.schedule.policies.names import POLICIES, make
from flatout.schedule.pool import Pool
from flatout.schedule.requirements import NodeMatcher
from flatout.schedule.result import SimulationResult

STARVED_AFTER_S = 14 * 86_400.0
Progress = Callable[[int, int], None]  # jobs done, jobs in total


def replay(
    history: JobHistory,
    cluster: Cluster,
    policies: Sequence[str],
    *,
    assumptions: Assumptions | None = None,
    failures: FailureModel | None = None,
    num_seeds: int = 1,
    starved_after_s: float = STARVED_AFTER_S,
    progress: Progress | None = None,
) -> ReplayReport:
    """Replay all policies on the same jobs and failures; measures use the first seed, differences use all seeds."""
    assumed = assumptions or Assumptions()
    jobs, skipped = runnable(history, cluster)
    submit_s = np.array([job.submit_s for job in jobs])
    failure_models = _by_seed(failures, num_seeds)
    replays = _Replays(
        jobs,
        cluster,
        assumed,
        edges=window_edges(submit_s),
        starved_after_s=starved_after_s,
        num_runs=len(policies) * len(failure_models),
        progress=progress,
    )
    results: list[PolicyReplay] = []
    samples: list[list[PolicySamples]] = []
    for policy in policies:
        result, samples_of_seeds = replays.replay(policy, failure_models)
        results.append(result)
        samples.append(samples_of_seeds)
    span_s = max(float(submit_s.max() - submit_s.min()), 1e-9)
    requested_gpu_s = sum(job.num_gpus * job.gpu_share * job.duration_s for job in jobs)
    return ReplayReport(
        source=history.source,
        num_gpus=cluster.num_gpus,
        num_nodes=len(cluster.nodes),
        span_s=span_s,
        load=requested_gpu_s / (cluster.num_gpus * span_s) if span_s > 1 else None,
        checkpoint_s=assumed.checkpoint_s,
        restart_s=assumed.restart_s,
        starved_after_s=starved_after_s,
        left_out=skipped,
        assumptions=(
            *history.notes,
            *_assumption_texts(jobs, assumed, failures),
            *NodeMatcher(cluster).assumptions(jobs),
        ),
        policies=tuple(results),
        differences=differences(policies, submit_s, samples) if len(policies) > 1 else (),
    )


def _by_seed(failures: FailureModel | None, num_seeds: int) -> list[FailureModel | None]:
    """Return the failure model of each seed; without failures all seeds give equal results, so one is enough."""
    if failures is None:
        return [None]
    return [msgspec.structs.replace(failures, seed=failures.seed + seed) for seed in range(num_seeds)]


class _Replays:
    """Runs policies on one history, and reports progress over all runs."""

    def __init__(
        self,
        jobs: Sequence[ClusterJob],
        cluster: Cluster,
        assumptions: Assumptions,
        *,
        edges: npt.NDArray[np.float64],
        starved_after_s: float,
        num_runs: int,
        progress: Progress | None,
    ) -> None:
        self._jobs, self._cluster, self._assumptions = jobs, cluster, assumptions
        self._edges, self._starved_after_s = edges, starved_after_s
        self._num_jobs_total = num_runs * len(jobs)
        self._num_jobs_done = 0  # in the runs before the current one
        self._progress = progress

    def replay(
        self, name: str, failure_models: Sequence[FailureModel | None]
    ) -> tuple[PolicyReplay, list[PolicySamples]]:
        """Return the measures of a policy under the first failure model, and its samples under each."""
        policy = POLICIES[name]
        measured: PolicyReplay | None = None
        samples = []
        for failures in failure_models:
            progress = self._show_progress if self._progress is not None else None
            result, seconds = timed_run(self._jobs, self._cluster, name, self._assumptions, failures, progress)
            self._num_jobs_done += len(self._jobs)
            columns = Columns(result)
            samples.append(policy_samples(result, columns, self._edges))
            if measured is None:
                measured = measure(
                    result,
                    policy.summary,
                    seconds=seconds,
                    starved_after_s=self._starved_after_s,
                    is_oracle=policy.is_oracle,
                    columns=columns,
                )
        assert measured is not None
        return measured, samples

    def _show_progress(self, num_done: int, _: int) -> None:
        assert self._progress is not None
        self._progress(self._num_jobs_done + num_done, self._num_jobs_total)


def timed_run(
    jobs: Sequence[ClusterJob],
    cluster: Cluster,
    name: str,
    assumptions: Assumptions,
    failures: FailureModel | None = None,
    progress: Progress | None = None,
) -> tuple[SimulationResult, float]:
    """Return the result of a simulation and the seconds that it took.

    The garbage collector is off during the run, because the simulator creates no cyclic garbage.
    """
    began = time.perf_counter()
    was_on = gc.isenabled()
    gc.disable()
    try:
        if name == Fifo.name and failures is None and rigid.applies(jobs):
            result = rigid.fifo(jobs, cluster)
        else:
            policy = make(name, jobs, cluster)
            simulation = Simulation(
                jobs, cluster, policy, assumptions=assumptions, failures=failures, progress=progress
            )
            result = simulation.run()
        return result, time.perf_counter() - began
    finally:
        if was_on:
            gc.enable()


def runnable(history: JobHistory, cluster: Cluster) -> tuple[tuple[ClusterJob, ...], dict[str, int]]:
    """Return the jobs that fit on the empty cluster, and how many rows and jobs were skipped, by reason."""
    matcher, pool = NodeMatcher(cluster), Pool(cluster.nodes)
    fits: dict[tuple[int, int], bool] = {}
    jobs, skipped = [], dict(history.skipped)
    for job in history.jobs:
        mask = matcher.mask(job)
        request = (job.num_gpus, mask)
        if request not in fits:
            fits[request] = pool.fits(job.num_gpus, mask)
        if fits[request]:
            jobs.append(job)
        else:
            reason = matcher.why_not(job)
            skipped[reason] = skipped.get(reason, 0) + 1
    if not jobs:
        reasons = "; ".join(f"{count:,}: {reason}" for reason, count in skipped.items()) or "the file has no rows"
        raise InputError(
            f"the history has no job that can be replayed ({reasons})",
            hint="check --nodes, --gpus-per-node and the file",
        )
    return tuple(jobs), skipped


def _assumption_texts(jobs: Sequence[ClusterJob], assumed: Assumptions, failures: FailureModel | None) -> list[str]:
    """Return sentences about the values that the replay assumes because the history does not state them."""
    texts = []
    if any(job.checkpoint_s is None for job in jobs):
        texts.append(f"jobs write a checkpoint every {assumed.checkpoint_s:g} s of work")
    if any(job.restart_s is None for job in jobs):
        texts.append(f"a job that was stopped needs {assumed.restart_s:g} s to start again")
    if failures is not None:
        repair_h = failures.repair_s / 3600
        texts.append(f"{failures.per_1000_node_days:g} failures per 1,000 node-days, {repair_h:g} h to repair a node")
    texts.append("a job of at most a node's GPUs runs on one node, a wider one on whole nodes")
    return texts
