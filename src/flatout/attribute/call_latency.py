"""How long the calls of a model take in a script that only infers, by the size of the batch.

In: the steps of all ranks. Out: a `CallLatency` for each size. A step is the time from one call to the next, so the
script's work between two calls is part of it. Warm-up and steps that the recorder prolongs are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.job_log import JobLog
from flatout.records.recorded_time import CallLatency, UncountedCalls
from flatout.records.recording import RankRecording

MOST_SIZES = 8  # the most frequent ones
# A quantile is known if at least this many calls are beyond it.
MIN_BEYOND = 1


def call_latencies(ranks: Sequence[RankRecording], log: JobLog) -> tuple[CallLatency, ...]:
    """Return the latencies of each size of batch, the most frequent first; () if the steps are not calls."""
    if not _are_calls(ranks):
        return ()
    measured = set(log.number[log.is_measured].tolist())
    calls = _Calls(ranks, measured, is_launching=log.launched_ahead is not None)
    unknown = np.isnan(calls.num_samples)
    known, counts = np.unique(calls.num_samples[~unknown], return_counts=True)
    frequent = known[np.argsort(-counts, kind="stable")][:MOST_SIZES]
    latencies = [_latency(calls, calls.num_samples == size, float(size)) for size in frequent]
    if unknown.any():
        latencies.append(_latency(calls, unknown, None))
    return tuple(latencies)


def uncounted_calls(ranks: Sequence[RankRecording], log: JobLog) -> UncountedCalls | None:
    """Return how many calls count in no latency, and why; None if the steps are not calls, or all of them count."""
    if not _are_calls(ranks):
        return None
    is_uncounted = ~log.is_measured
    is_warm_up = is_uncounted & (log.number < log.settled)
    uncounted = UncountedCalls(
        num_warm_up=_num_calls(ranks, log.number[is_warm_up]),
        num_disturbed=_num_calls(ranks, log.number[is_uncounted & ~is_warm_up]),
    )
    return uncounted if uncounted.num_warm_up or uncounted.num_disturbed else None


def _are_calls(ranks: Sequence[RankRecording]) -> bool:
    return bool(ranks) and all(rank.steps_from == "forward" for rank in ranks)


def _num_calls(ranks: Sequence[RankRecording], numbers: NDArray[np.int64]) -> int:
    return sum(int(np.isin(rank.steps.number, numbers).sum()) for rank in ranks)


class _Calls:
    """The measured calls of all ranks, as columns."""

    def __init__(self, ranks: Sequence[RankRecording], measured: set[int], *, is_launching: bool) -> None:
        latencies, periods, samples = [], [], []
        for rank in ranks:
            is_measured = np.array([number in measured for number in rank.steps.number.tolist()], dtype=np.bool_)
            latencies.append(_latency_s(rank)[is_measured])
            periods.append(rank.steps.duration_s[is_measured])
            samples.append(rank.steps.num_samples[is_measured])
        self.latency_s = np.concatenate(latencies)
        self.period_s = np.concatenate(periods)
        self.num_samples = np.concatenate(samples)
        self.is_pooled = any(rank.is_pooled for rank in ranks)
        self.is_launching = is_launching


def _latency_s(rank: RankRecording) -> NDArray[np.float64]:
    """Return how long each call took: from one to the next on one thread, and within the model on several."""
    if rank.is_pooled and rank.steps.model_s is not None:
        return rank.steps.model_s
    return rank.steps.duration_s


def _latency(calls: _Calls, rows: NDArray[np.bool_], num_samples: float | None) -> CallLatency:
    seconds = calls.latency_s[rows]

    def quantile(share: float) -> float | None:
        if len(seconds) * (1 - share) < MIN_BEYOND - 1e-9:
            return None
        return float(np.quantile(seconds, share))

    mean_period_s = float(calls.period_s[rows].mean())
    return CallLatency(
        num_samples=num_samples,
        num_calls=len(seconds),
        p50_s=float(np.median(seconds)),
        p90_s=quantile(0.9),
        p99_s=quantile(0.99),
        samples_per_s=None if num_samples is None else num_samples / mean_period_s,
        num_at_once=float(seconds.sum() / calls.period_s[rows].sum()) if calls.is_pooled else None,
        is_launching=calls.is_launching or msgspec.UNSET,
    )
