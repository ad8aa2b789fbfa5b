"""The measures of a simulation, from its log alone: completion times, waits, utilization, goodput, fairness, money.

In: a `SimulationResult`. Out: a `PolicyReplay`. `rho` is finish-time fairness (Themis, NSDI'20): a job's completion
time divided by (its duration times the mean demand during its life), where demand is the GPUs requested by all jobs in
the system divided by the GPUs of the cluster, and at least 1. So it compares the completion time with the time that the
job would take with a fair share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.records.replay import PolicyReplay, SizeWait, TeamUse
from flatout.schedule.cluster import GpuType
from flatout.schedule.pool import nodes_of
from flatout.schedule.result import SimulationResult
from flatout.schedule.series import Curves, free_while_waiting, replay_series
from flatout.schedule.step_function import StepFunction, sum_over_intervals

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SIZES = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 64), (65, 10**9))
_UNBOUNDED = 10**9
_STOPPED_BY_POLICY = ("preempted", "reclaimed", "resized")
_JOULES_PER_KWH = 3.6e6


class Columns:
    """The log and the jobs of a simulation as arrays; segments in order of (job, start)."""

    def __init__(self, result: SimulationResult) -> None:
        log = result.log
        raw = np.array([row[:7] for row in log], dtype=float).reshape(len(log), 7)
        order = np.lexsort((raw[:, 1], raw[:, 0]))
        self.segments = [log[index] for index in order]
        raw = raw[order]
        self.job: Ints = raw[:, 0].astype(np.int64)
        self.start, self.end, self.gpus = raw[:, 1], raw[:, 2], raw[:, 3]
        self.overhead, self.lost, self.idle = raw[:, 4], raw[:, 5], raw[:, 6]
        self.held = self.end - self.start
        self.useful = np.maximum(0.0, self.held - self.overhead - self.lost - self.idle)
        jobs = result.jobs
        self.submit: Floats = np.array([job.submit_s for job in jobs])
        self.requested: Floats = np.array([job.num_gpus * job.gpu_share for job in jobs])
        self.duration: Floats = np.array([job.duration_s for job in jobs])
        self.finish: Floats = np.array(result.finish_s)
        # The time that a job waited before each of its segments. A job that was reclaimed while idle was not waiting
        # until it had work again; that time is nevertheless included here.
        before = np.empty(len(log))
        before[0:1] = self.start[0:1] - self.submit[self.job[0:1]]
        is_same_job = self.job[1:] == self.job[:-1]
        since_segment = self.start[1:] - self.end[:-1]
        since_submission = self.start[1:] - self.submit[self.job[1:]]
        before[1:] = np.where(is_same_job, since_segment, since_submission)
        self.before: Floats = np.maximum(0.0, before)

    @property
    def jct(self) -> Floats:
        """Return the job completion times: from submission to the end."""
        return self.finish - self.submit

    def per_job(self, values: Floats) -> Floats:
        """Return the sum over the segments of each job."""
        return np.bincount(self.job, values, len(self.submit)).astype(float)

    def held_gpus(self) -> StepFunction:
        return sum_over_intervals(self.start, self.end, self.gpus)

    def useful_gpus(self) -> StepFunction:
        """Return the number of GPUs in use, with a segment's useful time spread evenly over the segment."""
        share = self.useful / np.maximum(self.held, 1e-9)
        return sum_over_intervals(self.start, self.end, self.gpus * share)

    def waiting_jobs(self) -> StepFunction:
        is_wait = self.before > 0
        starts = self.start[is_wait]
        waiting_since = (self.start - self.before)[is_wait]
        return sum_over_intervals(waiting_since, starts, np.ones(len(starts)))


class PolicySamples(NamedTuple):
    """The samples from which differences between policies are computed, by job and by window of time."""

    jct_s: Floats
    wait_s: Floats
    lost_gpu_hours: Floats  # lost work and restarts
    goodput: Floats  # utilization of all GPUs in each window; NaN if all jobs were submitted at once


def policy_samples(result: SimulationResult, columns: Columns, edges: Floats) -> PolicySamples:
    """Return the samples of a simulation; `edges` are the edges of the windows, in the history's own time."""
    useful_gpu_s = np.diff(columns.useful_gpus().integral(edges))
    width_s = np.diff(edges)
    capacity_gpu_s = np.maximum(width_s * result.cluster.num_gpus, 1e-9)
    lost_gpu_hours = (columns.lost + columns.overhead) * columns.gpus / 3600
    return PolicySamples(
        jct_s=columns.jct,
        wait_s=columns.per_job(columns.before),
        lost_gpu_hours=columns.per_job(lost_gpu_hours),
        goodput=np.where(width_s > 0, useful_gpu_s / capacity_gpu_s, np.nan),
    )


def measure(
    result: SimulationResult,
    summary: str,
    *,
    seconds: float,
    starved_after_s: float,
    is_oracle: bool = False,
    columns: Columns | None = None,
) -> PolicyReplay:
    """Return all measures of a simulation that took `seconds`.

    `columns` are its result's columns, if already computed.
    """
    columns = columns or Columns(result)
    num_jobs, num_gpus = len(result.jobs), result.cluster.num_gpus
    start_s, end_s = float(columns.submit.min()), float(columns.finish.max())
    makespan_s = max(end_s - start_s, 1e-9)
    capacity_gpu_s = num_gpus * makespan_s
    jct = columns.jct
    wait = columns.per_job(columns.before)
    longest_wait = np.zeros(num_jobs)
    np.maximum.at(longest_wait, columns.job, columns.before)
    held_gpu_s = float((columns.held * columns.gpus).sum())
    useful_gpu_s = float((columns.useful * columns.gpus).sum())
    idle_gpu_s = float((columns.idle * columns.gpus).sum())
    lost_gpu_s = float((columns.lost * columns.gpus).sum())
    overhead_gpu_s = float((columns.overhead * columns.gpus).sum())
    rho = _rho(columns, num_gpus)
    dollars = _dollars(result, columns)
    curves = Curves(columns.held_gpus(), columns.useful_gpus(), columns.waiting_jobs())
    return PolicyReplay(
        policy=result.policy,
        summary=summary,
        is_oracle=is_oracle,
        num_jobs=num_jobs,
        jct_mean_s=float(jct.mean()),
        jct_p50_s=float(np.quantile(jct, 0.5)),
        jct_p99_s=float(np.quantile(jct, 0.99)),
        wait_mean_s=float(wait.mean()),
        wait_by_size=_wait_by_size(columns.requested, wait),
        utilization=held_gpu_s / capacity_gpu_s,
        goodput=useful_gpu_s / capacity_gpu_s,
        makespan_s=makespan_s,
        longest_wait_s=float(longest_wait.max()),
        num_starved=int((longest_wait > starved_after_s).sum()),
        fairness_p50=float(np.quantile(rho, 0.5)),
        fairness_p99=float(np.quantile(rho, 0.99)),
        fragmentation=free_while_waiting(curves, num_gpus, end_s - start_s),
        preemptions=sum(segment.ending in _STOPPED_BY_POLICY for segment in columns.segments),
        failures=result.num_failures,
        useful_gpu_hours=useful_gpu_s / 3600,
        idle_gpu_hours=idle_gpu_s / 3600,
        lost_gpu_hours=lost_gpu_s / 3600,
        restart_gpu_hours=overhead_gpu_s / 3600,
        energy_kwh=_energy_kwh(result, columns, makespan_s),
        dollars=None if dollars is None else float(dollars.sum()),
        teams=_teams(result, columns, dollars),
        jobs_per_s=num_jobs / seconds,
        notes=result.notes,
        series=replay_series(result, curves, start_s, end_s),
    )


def _wait_by_size(requested: Floats, wait: Floats) -> tuple[SizeWait, ...]:
    waits = []
    for low, high in SIZES:
        of_size = wait[(requested > low - 1) & (requested <= high)]
        if not len(of_size):
            continue
        mean_s, p99_s = float(of_size.mean()), float(np.quantile(of_size, 0.99))
        waits.append(SizeWait(gpus=_size_name(low, high), num_jobs=len(of_size), mean_s=mean_s, p99_s=p99_s))
    return tuple(waits)


def _size_name(low: int, high: int) -> str:
    if low == high:
        return str(low)
    return f"{low} or more" if high == _UNBOUNDED else f"{low}-{high}"


def _rho(columns: Columns, num_gpus: int) -> Floats:
    """Return the finish-time fairness of each job."""
    jct = columns.jct
    demand = sum_over_intervals(columns.submit, columns.finish, columns.requested)
    demand_gpu_s = demand.integral(columns.finish) - demand.integral(columns.submit)
    mean_demand = demand_gpu_s / np.maximum(jct, 1e-9)
    fair_s = columns.duration * np.maximum(1.0, mean_demand / num_gpus)
    return np.asarray(jct / fair_s)


class _TypeFact(NamedTuple):
    """A property of GPU types, such as power, for each segment and summed over all GPUs of the cluster."""

    of_segments: Floats
    of_cluster: float


def _type_fact(result: SimulationResult, columns: Columns, name: str) -> _TypeFact | None:
    """Return a field of `GpuType` for the segments and the cluster; None if a type in use lacks it."""
    nodes, types = result.cluster.nodes, result.cluster.types
    value_of: dict[str, float] = {}
    for node in nodes:
        value: float | None = getattr(types.get(node.gpu_type, GpuType()), name)
        if value is None:
            return None
        value_of[node.gpu_type] = float(value)
    first_nodes = [nodes[nodes_of(segment.placement, 1)[0][0]] for segment in columns.segments]
    of_segments = np.array([value_of[node.gpu_type] for node in first_nodes])
    return _TypeFact(of_segments, sum(value_of[node.gpu_type] * node.num_gpus for node in nodes))


def _energy_kwh(result: SimulationResult, columns: Columns, makespan_s: float) -> float | None:
    """Return the energy of all GPUs in kWh: working GPUs draw `busy_w`; free, restarting or idle ones draw `idle_w`."""
    busy_w, idle_w = _type_fact(result, columns, "busy_w"), _type_fact(result, columns, "idle_w")
    if busy_w is None or idle_w is None:
        return None
    working_gpu_s = (columns.useful + columns.lost) * columns.gpus
    above_idle_w = busy_w.of_segments - idle_w.of_segments
    joules = (working_gpu_s * above_idle_w).sum() + idle_w.of_cluster * makespan_s
    return float(joules) / _JOULES_PER_KWH


def _dollars(result: SimulationResult, columns: Columns) -> Floats | None:
    """Return the price of each segment in USD; None if the price of a type is unknown."""
    price = _type_fact(result, columns, "dollars_per_hour")
    if price is None:
        return None
    return np.asarray(columns.held * columns.gpus * price.of_segments / 3600)


def _teams(result: SimulationResult, columns: Columns, dollars: Floats | None) -> tuple[TeamUse, ...]:
    names = sorted({job.team for job in result.jobs})
    number_of = {name: number for number, name in enumerate(names)}
    team_of_job: Ints = np.array([number_of[job.team] for job in result.jobs])
    team_of_segment = team_of_job[columns.job]

    def per_team(values: Floats) -> Sequence[float]:
        sums: list[float] = np.bincount(team_of_segment, values, len(names)).tolist()
        return sums

    useful = per_team(columns.useful * columns.gpus / 3600)
    idle = per_team(columns.idle * columns.gpus / 3600)
    lost = per_team((columns.lost + columns.overhead) * columns.gpus / 3600)
    num_jobs = np.bincount(team_of_job, minlength=len(names)).tolist()
    jct_sums = np.bincount(team_of_job, columns.jct, len(names))
    jct_means = (jct_sums / np.maximum(1, num_jobs)).tolist()
    money: Sequence[float | None] = [None] * len(names) if dollars is None else per_team(dollars)
    return tuple(
        TeamUse(
            team=name,
            num_jobs=num_jobs[number],
            useful_gpu_hours=useful[number],
            idle_gpu_hours=idle[number],
            lost_gpu_hours=lost[number],
            jct_mean_s=jct_means[number],
            dollars=money[number],
        )
        for number, name in enumerate(names)
    )
