"""What a run amounts to, from its log alone: completion times, waits, utilization and goodput, fairness, money.

In: a `SimulationResult`. Out: a `PolicyReplay`. `rho` is finish-time fairness (Themis, NSDI'20): a job's completion
time, over its duration times the mean demand during its life (GPUs requested by all jobs in the system, over those of
the cluster, at least 1). It compares with the time that the job would take with a fair share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.records.replay import PolicyReplay, ReplaySeries, SizeWait, TeamUse
from flatout.schedule.engine import SimulationResult
from flatout.schedule.pool import nodes_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

SIZES = ((1, 1), (2, 4), (5, 8), (9, 16), (17, 64), (65, 10**9))
NUM_SPANS = 240
NUM_NODE_SAMPLES = 48
MOST_NODES = 128


class Columns:
    """A run's log and jobs as arrays; segments in order of (job, start)."""

    def __init__(self, run: SimulationResult) -> None:
        log = run.log
        raw = np.array([row[:7] for row in log], dtype=float).reshape(len(log), 7)
        order = np.lexsort((raw[:, 1], raw[:, 0]))
        self.order = order
        raw = raw[order]
        self.job: Ints = raw[:, 0].astype(np.int64)
        self.start, self.end, self.gpus = raw[:, 1], raw[:, 2], raw[:, 3]
        self.overhead, self.lost, self.idle = raw[:, 4], raw[:, 5], raw[:, 6]
        self.held = self.end - self.start
        self.useful = np.maximum(0.0, self.held - self.overhead - self.lost - self.idle)
        self.submit: Floats = np.array([job.submit_s for job in run.jobs])
        self.asked: Floats = np.array([job.num_gpus * job.gpu_share for job in run.jobs])
        self.duration: Floats = np.array([job.duration_s for job in run.jobs])
        self.finish: Floats = np.array(run.finish_s)
        # What a job waited before each of its segments.
        before = np.empty(len(log))
        before[0:1] = self.start[0:1] - self.submit[self.job[0:1]]
        same = self.job[1:] == self.job[:-1]
        before[1:] = np.where(same, self.start[1:] - self.end[:-1], self.start[1:] - self.submit[self.job[1:]])
        self.before: Floats = np.maximum(0.0, before)
        # Where a job was reclaimed while idle it wasn't waiting until it had work again; that isn't told apart here.
        self.ending = [log[place].ending for place in order]


class PolicySamples(NamedTuple):
    """What differences between policies are made of: of each job, and of each window of time."""

    jct_s: Floats
    wait_s: Floats
    lost_gpu_hours: Floats  # lost work and restarts
    goodput: Floats  # share of all GPUs, in each window; NaN where all jobs came at once


def policy_samples(run: SimulationResult, columns: Columns, edges: Floats) -> PolicySamples:
    """`edges` are those of the windows, in the history's own time."""
    share = columns.useful / np.maximum(columns.held, 1e-9)
    times, useful = _steps(columns.start, columns.end, columns.gpus * share)
    area, width = np.diff(np.interp(edges, times, _integral(times, useful))), np.diff(edges)
    lost = (columns.lost + columns.overhead) * columns.gpus / 3600
    return PolicySamples(
        jct_s=columns.finish - columns.submit,
        wait_s=np.bincount(columns.job, columns.before, len(run.jobs)).astype(float),
        lost_gpu_hours=np.bincount(columns.job, lost, len(run.jobs)).astype(float),
        goodput=np.where(width > 0, area / np.maximum(width * run.cluster.num_gpus, 1e-9), np.nan),
    )


def measure(
    run: SimulationResult,
    summary: str,
    *,
    seconds: float,
    starved_after_s: float,
    is_oracle: bool = False,
    columns: Columns | None = None,
) -> PolicyReplay:
    """All measures of a run that took `seconds` to replay; `columns` where they were made already."""
    columns = columns or Columns(run)
    start_s, end_s = float(columns.submit.min()), float(columns.finish.max())
    makespan = max(end_s - start_s, 1e-9)
    capacity = run.cluster.num_gpus * makespan
    jct = columns.finish - columns.submit
    wait: Floats = np.bincount(columns.job, columns.before, len(run.jobs)).astype(float)
    longest = np.zeros(len(run.jobs))
    np.maximum.at(longest, columns.job, columns.before)
    areas = {name: float((getattr(columns, name) * columns.gpus).sum()) for name in _AREAS}
    rho = _rho(columns, jct, run.cluster.num_gpus)
    energy, dollars = _energy(run, columns, makespan), _dollars(run, columns)
    series, fragmentation = _series(run, columns, start_s, end_s)
    return PolicyReplay(
        policy=run.policy,
        summary=summary,
        is_oracle=is_oracle,
        num_jobs=len(run.jobs),
        jct_mean_s=float(jct.mean()),
        jct_p50_s=float(np.quantile(jct, 0.5)),
        jct_p99_s=float(np.quantile(jct, 0.99)),
        wait_mean_s=float(wait.mean()),
        wait_by_size=_wait_by_size(columns.asked, wait),
        utilization=areas["held"] / capacity,
        goodput=areas["useful"] / capacity,
        makespan_s=makespan,
        longest_wait_s=float(longest.max()),
        num_starved=int((longest > starved_after_s).sum()),
        fairness_p50=float(np.quantile(rho, 0.5)),
        fairness_p99=float(np.quantile(rho, 0.99)),
        fragmentation=fragmentation,
        preemptions=sum(ending in ("preempted", "reclaimed", "resized") for ending in columns.ending),
        failures=run.num_failures,
        useful_gpu_hours=areas["useful"] / 3600,
        idle_gpu_hours=areas["idle"] / 3600,
        lost_gpu_hours=areas["lost"] / 3600,
        restart_gpu_hours=areas["overhead"] / 3600,
        energy_kwh=energy,
        dollars=None if dollars is None else float(dollars.sum()),
        teams=_teams(run, columns, jct, dollars),
        jobs_per_s=len(run.jobs) / seconds,
        notes=run.notes,
        series=series,
    )


_AREAS = ("held", "useful", "idle", "lost", "overhead")


def _wait_by_size(asked: Floats, wait: Floats) -> tuple[SizeWait, ...]:
    found = []
    for low, high in SIZES:
        chosen = wait[(asked > low - 1) & (asked <= high)]
        if len(chosen):
            name = str(low) if low == high else f"{low}-{high}" if high < 10**9 else f"{low} or more"
            p99 = float(np.quantile(chosen, 0.99))
            found.append(SizeWait(gpus=name, num_jobs=len(chosen), mean_s=float(chosen.mean()), p99_s=p99))
    return tuple(found)


def _rho(columns: Columns, jct: Floats, num_gpus: int) -> Floats:
    times, demand = _steps(columns.submit, columns.finish, columns.asked)
    integral = _integral(times, demand)
    mean = (np.interp(columns.finish, times, integral) - np.interp(columns.submit, times, integral)) / np.maximum(
        jct, 1e-9
    )
    return np.asarray(jct / (columns.duration * np.maximum(1.0, mean / num_gpus)))


def _steps(start: Floats, end: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """The sum of the weights of all that is going on, as a step function: times and the values from then on."""
    times = np.concatenate([start, end])
    change = np.concatenate([weight, -weight])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(change[order])


def _integral(times: Floats, values: Floats) -> Floats:
    """The integral of a step function at its times."""
    return np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(times))])


def _series(run: SimulationResult, columns: Columns, start_s: float, end_s: float) -> tuple[ReplaySeries, float]:
    """The curves over time, and the share of GPUs that are free while a job waits."""
    edges = np.linspace(start_s, end_s, NUM_SPANS + 1)
    span = max((end_s - start_s) / NUM_SPANS, 1e-9)

    def means(times: Floats, values: Floats) -> Floats:
        return np.asarray(np.diff(np.interp(edges, times, _integral(times, values))) / span)

    held = _steps(columns.start, columns.end, columns.gpus)
    share = columns.useful / np.maximum(columns.held, 1e-9)
    useful = _steps(columns.start, columns.end, columns.gpus * share)
    waits = columns.before > 0
    queued = _steps((columns.start - columns.before)[waits], columns.start[waits], np.ones(int(waits.sum())))
    has_queue = len(queued[0]) > 0
    free_while_waiting = 0.0
    if has_queue:
        times = np.union1d(held[0], queued[0])
        allocated = held[1][np.maximum(0, np.searchsorted(held[0], times, "right") - 1)]
        allocated = np.where(times < held[0][0], 0.0, allocated)
        num_queued = queued[1][np.maximum(0, np.searchsorted(queued[0], times, "right") - 1)]
        num_queued = np.where(times < queued[0][0], 0.0, num_queued)
        free = (run.cluster.num_gpus - allocated)[:-1] * (num_queued[:-1] > 0.5) * np.diff(times)
        free_while_waiting = float(free.sum()) / (run.cluster.num_gpus * max(end_s - start_s, 1e-9))
    series = ReplaySeries(
        start_s=start_s,
        span_s=span,
        allocated=_rounded(means(*held)),
        useful=_rounded(means(*useful)),
        queued_jobs=_rounded(means(*queued)) if has_queue else (0.0,) * NUM_SPANS,
        node_sample_s=(end_s - start_s) / NUM_NODE_SAMPLES,
        node_samples=_node_samples(run, start_s, end_s),
    )
    return series, max(0.0, free_while_waiting)


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(max(0.0, float(value)), 2) for value in values)


def _node_samples(run: SimulationResult, start_s: float, end_s: float) -> tuple[tuple[float, ...], ...]:
    nodes = min(MOST_NODES, len(run.cluster.nodes))
    used = np.zeros((NUM_NODE_SAMPLES, nodes))
    step = max((end_s - start_s) / NUM_NODE_SAMPLES, 1e-9)
    starts = np.array([row.start_s for row in run.log])
    ends = np.array([row.end_s for row in run.log])
    # Sample k is taken in the middle of its span.
    first = np.ceil((starts - start_s) / step - 0.5).astype(int)
    last = np.ceil((ends - start_s) / step - 0.5).astype(int)
    for place in np.flatnonzero(last > first):
        row = run.log[place]
        for node, count in nodes_of(row.place, row.gpus):
            if node < nodes:
                used[max(0, first[place]) : last[place], node] += count
    return tuple(_rounded(row) for row in used)


def _types_of(run: SimulationResult, columns: Columns) -> list[str]:
    nodes = run.cluster.nodes
    return [nodes[nodes_of(run.log[place].place, 1)[0][0]].gpu_type for place in columns.order]


def _facts(run: SimulationResult, columns: Columns, key: str) -> tuple[Floats, float] | None:
    """A fact of the type of each segment, and its sum over all GPUs; None where it isn't known of a type."""
    facts: dict[str, Any] = {name: getattr(facts, key) for name, facts in run.cluster.types.items()}
    if any(facts.get(node.gpu_type) is None for node in run.cluster.nodes):
        return None
    by_segment = np.array([float(facts[name]) for name in _types_of(run, columns)])
    return by_segment, sum(float(facts[node.gpu_type]) * node.num_gpus for node in run.cluster.nodes)


def _energy(run: SimulationResult, columns: Columns, makespan: float) -> float | None:
    """GPUs that work draw `busy_w`; those free, restarting or held idle draw `idle_w`."""
    busy, idle = _facts(run, columns, "busy_w"), _facts(run, columns, "idle_w")
    if busy is None or idle is None:
        return None
    working = (columns.useful + columns.lost) * columns.gpus
    return float((working * (busy[0] - idle[0])).sum() + idle[1] * makespan) / 3.6e6


def _dollars(run: SimulationResult, columns: Columns) -> Floats | None:
    """Of each segment, at the price of its type."""
    prices = _facts(run, columns, "dollars_per_hour")
    return None if prices is None else np.asarray(columns.held * columns.gpus * prices[0] / 3600)


def _teams(run: SimulationResult, columns: Columns, jct: Floats, dollars: Floats | None) -> tuple[TeamUse, ...]:
    names = sorted({job.team for job in run.jobs})
    number = {name: place for place, name in enumerate(names)}
    team_of_job: Ints = np.array([number[job.team] for job in run.jobs])
    team = team_of_job[columns.job]

    def total(values: Floats) -> Sequence[float]:
        sums: list[float] = np.bincount(team, values * columns.gpus / 3600, len(names)).tolist()
        return sums

    useful, idle, lost = total(columns.useful), total(columns.idle), total(columns.lost + columns.overhead)
    counts = np.bincount(team_of_job, minlength=len(names)).tolist()
    means = (np.bincount(team_of_job, jct, len(names)) / np.maximum(1, counts)).tolist()
    money = None if dollars is None else np.bincount(team, dollars, len(names)).tolist()
    return tuple(
        TeamUse(
            team=name,
            num_jobs=counts[place],
            useful_gpu_hours=useful[place],
            idle_gpu_hours=idle[place],
            lost_gpu_hours=lost[place],
            jct_mean_s=means[place],
            dollars=None if money is None else money[place],
        )
        for place, name in enumerate(names)
    )
