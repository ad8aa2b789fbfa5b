"""The curves of a replay over time: GPUs held and in use, waiting jobs, and GPUs in use on each node.

In: a `SimulationResult` and its step functions. Out: a `ReplaySeries`, and the share of GPUs free while a job waits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.records.replay import ReplaySeries
from flatout.schedule.pool import nodes_of
from flatout.schedule.result import SimulationResult
from flatout.schedule.step_function import StepFunction

Floats = npt.NDArray[np.float64]

NUM_SPANS = 240
NUM_NODE_SAMPLES = 48
MOST_NODES = 128


class Curves(NamedTuple):
    """Step functions of the whole simulation."""

    held_gpus: StepFunction
    useful_gpus: StepFunction
    waiting_jobs: StepFunction

    @property
    def has_queue(self) -> bool:
        return len(self.waiting_jobs.times) > 0


def replay_series(result: SimulationResult, curves: Curves, start_s: float, end_s: float) -> ReplaySeries:
    """Return the means of the curves over equal time spans, and samples of the nodes."""
    edges = np.linspace(start_s, end_s, NUM_SPANS + 1)
    span_s = max((end_s - start_s) / NUM_SPANS, 1e-9)

    def means(curve: StepFunction) -> tuple[float, ...]:
        return _rounded(np.diff(curve.integral(edges)) / span_s)

    return ReplaySeries(
        start_s=start_s,
        span_s=span_s,
        allocated=means(curves.held_gpus),
        useful=means(curves.useful_gpus),
        queued_jobs=means(curves.waiting_jobs) if curves.has_queue else (0.0,) * NUM_SPANS,
        node_sample_s=(end_s - start_s) / NUM_NODE_SAMPLES,
        node_samples=_node_samples(result, start_s, end_s),
    )


def free_while_waiting(curves: Curves, num_gpus: int, span_s: float) -> float:
    """Return the share of all GPU time in which GPUs are free while a job waits."""
    if not curves.has_queue:
        return 0.0
    times = np.union1d(curves.held_gpus.times, curves.waiting_jobs.times)
    free = num_gpus - curves.held_gpus.at(times)
    has_waiting_job = curves.waiting_jobs.at(times) > 0.5
    free_gpu_s = free[:-1] * has_waiting_job[:-1] * np.diff(times)
    return max(0.0, float(free_gpu_s.sum()) / (num_gpus * max(span_s, 1e-9)))


def _rounded(values: Floats) -> tuple[float, ...]:
    return tuple(round(max(0.0, float(value)), 2) for value in values)


def _node_samples(result: SimulationResult, start_s: float, end_s: float) -> tuple[tuple[float, ...], ...]:
    """Return the number of GPUs in use on each of the first nodes, sampled in the middle of each time span."""
    num_nodes = min(MOST_NODES, len(result.cluster.nodes))
    used = np.zeros((NUM_NODE_SAMPLES, num_nodes))
    span_s = max((end_s - start_s) / NUM_NODE_SAMPLES, 1e-9)
    starts = np.array([segment.start_s for segment in result.log])
    ends = np.array([segment.end_s for segment in result.log])
    first = np.ceil((starts - start_s) / span_s - 0.5).astype(int)
    last = np.ceil((ends - start_s) / span_s - 0.5).astype(int)
    for index in np.flatnonzero(last > first):
        segment = result.log[index]
        samples = slice(max(0, first[index]), last[index])
        for node, count in nodes_of(segment.placement, segment.gpus):
            if node < num_nodes:
                used[samples, node] += count
    return tuple(_rounded(row) for row in used)
