"""Differences between each policy and the first policy, with intervals over seeds and windows of the history.

In: the samples of all jobs under each policy and seed. Out: `PolicyDifference`s. Jobs are grouped by the window in
which they were submitted. Seeds and windows are resampled with replacement, together for both policies and for all
measures, 2,000 times (paired block bootstrap; percentile intervals). A queue that lasts from one window into the next
makes their jobs dependent, so windows are long (a week, if the history has ten), and intervals from few windows are too
narrow; with fewer than five windows, no intervals are given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from flatout.records.replay import MeasureDifference, PolicyDifference
from flatout.schedule.measures import PolicySamples

WEEK = 7 * 86_400.0
NUM_RESAMPLES = 2000
MIN_WINDOWS, MAX_WINDOWS = 5, 52
MAX_GRID = 2048  # number of candidate values for the percentile of a resample
SAME = 0.02  # ratios within 2 % of 1 are equivalent
_ROWS_AT_ONCE = 128
Floats = npt.NDArray[np.float64]


def num_windows(submit: Floats) -> int:
    """Return the number of windows: one per week, or ten for a history shorter than ten weeks; at most 52."""
    span_s = float(submit.max() - submit.min()) if len(submit) else 0.0
    return int(min(MAX_WINDOWS, max(10, span_s // WEEK)))


def windows(submit: Floats) -> npt.NDArray[np.int64]:
    """Return the index of the window of each job."""
    count = num_windows(submit)
    since_first = submit - submit.min()
    span_s = float(submit.max() - submit.min())
    window = (since_first / max(span_s, 1e-9) * count).astype(np.int64)
    return np.asarray(np.minimum(count - 1, window))


def window_edges(submit: Floats) -> Floats:
    """Return the edges of the windows, in the history's own time."""
    return np.linspace(float(submit.min()), float(submit.max()), num_windows(submit) + 1)


class _Resamples:
    """How often each seed and window is drawn in each resample.

    The last row is the history, in which each counts once.
    """

    def __init__(self, submit: Floats, num_seeds: int) -> None:
        self.window = windows(submit)
        self.num_seeds, self.num_windows = num_seeds, int(self.window.max()) + 1
        random = np.random.default_rng(0)
        drawn_seeds = random.integers(0, num_seeds, (NUM_RESAMPLES, num_seeds))
        drawn_windows = random.integers(0, self.num_windows, (NUM_RESAMPLES, self.num_windows))
        seed_counts = _counts(drawn_seeds, num_seeds)
        window_counts = _counts(drawn_windows, self.num_windows)
        block_counts = (seed_counts[:, :, None] * window_counts[:, None, :]).reshape(NUM_RESAMPLES, -1)
        history_itself = np.ones((1, num_seeds * self.num_windows))
        self.weights: Floats = np.concatenate([block_counts, history_itself])
        jobs_in_window = np.bincount(self.window, minlength=self.num_windows).astype(float)
        self.num_jobs: Floats = self.weights @ np.tile(jobs_in_window, num_seeds)
        num_with_jobs = int((jobs_in_window > 0).sum())
        self.too_few: str | None = None
        if num_with_jobs < MIN_WINDOWS:
            self.too_few = (
                f"jobs were submitted in {num_with_jobs} of {self.num_windows} windows; an interval needs {MIN_WINDOWS}"
            )

    def blocks(self, by_seed: Sequence[Floats]) -> Floats:
        """Return the sum over the jobs of each seed and window."""
        return np.concatenate([np.bincount(self.window, values, self.num_windows) for values in by_seed])

    def mean(self, by_seed: Sequence[Floats]) -> Floats:
        return np.asarray(self.weights @ self.blocks(by_seed) / np.maximum(self.num_jobs, 1.0))

    def p99(self, by_seed: Sequence[Floats]) -> Floats:
        """Return the 0.99 quantile over the jobs of each resample: exact up to `MAX_GRID` values, or else on a grid."""
        pooled = np.concatenate(by_seed)
        grid = _quantile_grid(pooled)
        block = np.concatenate([self.window + seed * self.num_windows for seed in range(self.num_seeds)])
        num_blocks = self.num_seeds * self.num_windows
        cells = block * len(grid) + np.searchsorted(grid, pooled)
        in_cell = np.bincount(cells, minlength=num_blocks * len(grid)).reshape(-1, len(grid))
        up_to = in_cell.cumsum(1).astype(float)  # number of jobs in a block whose time is at most the value
        quantiles = np.empty(len(self.weights))
        for first_row in range(0, len(quantiles), _ROWS_AT_ONCE):
            jobs_up_to = self.weights[first_row : first_row + _ROWS_AT_ONCE] @ up_to
            for row, numbers in enumerate(jobs_up_to, first_row):
                rank = 0.99 * max(self.num_jobs[row] - 1, 0.0)
                lower_rank = int(rank)
                cell = np.searchsorted(numbers, [lower_rank + 0.5, lower_rank + 1.5])
                below, above = grid[np.minimum(cell, len(grid) - 1)]
                quantiles[row] = below + (above - below) * (rank - lower_rank)
        quantiles[-1] = np.quantile(pooled, 0.99)
        return quantiles


def _quantile_grid(pooled: Floats) -> Floats:
    """Return the values of all jobs or, if there are too many, a selection that is denser towards the maximum."""
    grid = np.unique(pooled)
    if len(grid) <= MAX_GRID:
        return grid
    ranks = 1 - np.geomspace(1, 1 / len(pooled), MAX_GRID)
    quantiles = np.quantile(pooled, ranks, method="inverted_cdf")
    return np.unique(np.append(quantiles, pooled.max()))


def _counts(drawn: npt.NDArray[np.int64], size: int) -> Floats:
    """Return the count of each number below `size` in each row."""
    return np.stack([(drawn == value).sum(1) for value in range(size)], 1).astype(float)


def differences(
    names: Sequence[str], submit: Floats, samples: Sequence[Sequence[PolicySamples]]
) -> tuple[PolicyDifference, ...]:
    """Compare `samples[policy][seed]`; the first policy is the baseline."""
    resamples = _Resamples(submit, len(samples[0]))
    values = [_values(resamples, by_seed) for by_seed in samples]
    baseline = values[0]
    return tuple(
        _policy_difference(name, names[0], baseline, policy, resamples)
        for name, policy in zip(names[1:], values[1:], strict=True)
    )


def _policy_difference(
    name: str,
    baseline_name: str,
    baseline: Mapping[str, Floats],
    policy: Mapping[str, Floats],
    resamples: _Resamples,
) -> PolicyDifference:
    measures = tuple(
        _measure_difference(measure, baseline[measure.name], policy[measure.name], resamples.too_few)
        for measure in _MEASURES
    )
    mean_jct = measures[0]
    return PolicyDifference(
        policy=name,
        baseline=baseline_name,
        measure="jct_mean_s",
        ratio=float("nan") if mean_jct.value is None else mean_jct.value,
        low=mean_jct.low,
        high=mean_jct.high,
        verdict=_verdict_of(mean_jct),
        num_seeds=resamples.num_seeds,
        num_windows=resamples.num_windows,
        measures=measures,
    )


class _Measure(NamedTuple):
    """A measure whose difference is reported: a ratio, or the policy's value minus the baseline's in some unit."""

    name: str
    unit: str
    windows_of: str

    @property
    def is_ratio(self) -> bool:
        return self.unit == "ratio"


_MEASURES = (
    _Measure("jct_mean", "ratio", "submissions"),
    _Measure("jct_p99", "ratio", "submissions"),
    _Measure("wait_mean", "s", "submissions"),
    _Measure("goodput", "share", "time"),
    _Measure("lost", "GPU-hours", "submissions"),
)


def _values(resamples: _Resamples, by_seed: Sequence[PolicySamples]) -> dict[str, Floats]:
    """Return each measure for each resample; the last value is for the history itself."""
    jct = [samples.jct_s for samples in by_seed]
    goodput = np.concatenate([samples.goodput[: resamples.num_windows] for samples in by_seed])
    lost = resamples.blocks([samples.lost_gpu_hours for samples in by_seed])
    return {
        "jct_mean": resamples.mean(jct),
        "jct_p99": resamples.p99(jct),
        "wait_mean": resamples.mean([samples.wait_s for samples in by_seed]),
        "goodput": np.asarray(resamples.weights @ goodput / len(goodput)),
        "lost": np.asarray(resamples.weights @ lost / len(by_seed)),
    }


def _measure_difference(measure: _Measure, baseline: Floats, policy: Floats, too_few: str | None) -> MeasureDifference:
    value, resampled = _compared(measure, baseline, policy)
    reason = too_few
    if value is None:
        reason = "a time of 0 has no ratio" if measure.is_ratio else "all jobs were submitted at once"
    elif too_few is None and np.ptp(baseline) == 0 and np.ptp(policy) == 0:
        reason = "the value is the same in every window under both policies, so windows do not show its variance"
    low: float | None = None
    high: float | None = None
    if reason is None:
        low, high = (float(bound) for bound in np.quantile(resampled, [0.025, 0.975]))
    return MeasureDifference(
        measure=measure.name,
        unit=measure.unit,
        value=value,
        low=low,
        high=high,
        windows_of=measure.windows_of,
        reason=reason,
    )


def _compared(measure: _Measure, baseline: Floats, policy: Floats) -> tuple[float | None, Floats]:
    """Return the difference in the history (None if it is undefined), and in the resamples."""
    if not measure.is_ratio:
        value = float(policy[-1] - baseline[-1])
        return None if np.isnan(value) else value, policy[:-1] - baseline[:-1]
    is_valid = (baseline > 0) & (policy > 0)
    in_history = float(baseline[-1] / policy[-1]) if is_valid[-1] else None
    valid_resamples = is_valid[:-1]
    return in_history, baseline[:-1][valid_resamples] / policy[:-1][valid_resamples]


def _verdict_of(difference: MeasureDifference) -> str:
    if difference.low is None or difference.high is None:
        return "undecided"
    return verdict(difference.low, difference.high)


def verdict(low: float, high: float) -> str:
    """Judge a policy by the interval of a ratio for which larger is better."""
    if low >= 1 - SAME and high <= 1 + SAME:
        return "equivalent"
    if low > 1:
        return "better"
    return "worse" if high < 1 else "undecided"
