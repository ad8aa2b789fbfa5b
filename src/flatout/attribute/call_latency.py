"""How long the calls of a model take in a script that only infers, by the size of the batch.

In: the steps of all ranks. Out: a `CallLatency` for each size. A step is the time from one call to the next, so the
script's work between two calls is part of it. Warm-up and steps that the recorder prolongs are excluded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from flatout.records.job_log import JobLog
from flatout.records.recorded_time import CallLatency
from flatout.records.recording import RankRecording

MOST_SIZES = 8  # the most frequent ones
# A quantile is known if at least this many calls are beyond it.
MIN_BEYOND = 1


def call_latencies(ranks: Sequence[RankRecording], log: JobLog) -> tuple[CallLatency, ...]:
    """Return the latencies of each size of batch, the most frequent first; () if the steps are not calls."""
    if not ranks or any(rank.steps_from != "forward" for rank in ranks):
        return ()
    measured = set(log.number[log.is_measured].tolist())
    durations: list[float] = []
    sizes: list[float] = []
    for rank in ranks:
        is_measured = np.array([number in measured for number in rank.steps.number.tolist()], dtype=np.bool_)
        durations += rank.steps.duration_s[is_measured].tolist()
        sizes += rank.steps.num_samples[is_measured].tolist()
    seconds, samples = np.array(durations), np.array(sizes)
    unknown = np.isnan(samples)
    known, counts = np.unique(samples[~unknown], return_counts=True)
    frequent = known[np.argsort(-counts, kind="stable")][:MOST_SIZES]
    latencies = [_latency(seconds[samples == size], float(size)) for size in frequent]
    if unknown.any():
        latencies.append(_latency(seconds[unknown], None))
    return tuple(latencies)


def _latency(seconds: np.ndarray[tuple[int], np.dtype[np.float64]], num_samples: float | None) -> CallLatency:
    def quantile(share: float) -> float | None:
        if len(seconds) * (1 - share) < MIN_BEYOND - 1e-9:
            return None
        return float(np.quantile(seconds, share))

    mean_s = float(seconds.mean())
    return CallLatency(
        num_samples=num_samples,
        num_calls=len(seconds),
        p50_s=float(np.median(seconds)),
        p90_s=quantile(0.9),
        p99_s=quantile(0.99),
        samples_per_s=None if num_samples is None else num_samples / mean_s,
    )
