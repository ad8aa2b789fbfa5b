"""Policies against the first one, each with an interval over seeds and windows of the history.

In: the outcomes of all jobs under each policy and seed. Out: `PolicyDifference`s. Jobs are grouped by the
window in which they were submitted; seeds and windows are drawn again with replacement, together for both policies
and for all measures, 2,000 times (paired block bootstrap; percentile intervals). A queue that lasts from one window
into the next ties their jobs together, so windows are long (a week, where the history has ten), and intervals of few
windows are too narrow; of fewer than five there are none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flatout.records.replay import MeasureDifference, PolicyDifference
from flatout.schedule.measures import PolicySamples

WEEK = 7 * 86_400.0
NUM_RESAMPLES = 2000
MIN_WINDOWS = 5
MAX_GRID = 2048  # values between which the percentile of a resample is looked for
SAME = 0.02  # ratios within 2 % of 1 are equivalent
Floats = npt.NDArray[np.float64]


def num_windows(submit: Floats) -> int:
    """Weeks, or tenths of a history shorter than ten weeks, at most 52."""
    span = float(submit.max() - submit.min()) if len(submit) else 0.0
    return int(min(52, max(10, span // WEEK)))


def windows(submit: Floats) -> npt.NDArray[np.int64]:
    """The number of the window of each job."""
    span, count = float(submit.max() - submit.min()), num_windows(submit)
    return np.asarray(np.minimum(count - 1, (submit - submit.min()) / max(span, 1e-9) * count).astype(np.int64))


def window_edges(submit: Floats) -> Floats:
    """Where the windows begin and end, in the history's own time."""
    return np.linspace(float(submit.min()), float(submit.max()), num_windows(submit) + 1)


class _Resamples:
    """How often each seed and window is in each resample; the last row is the history itself, each once."""

    def __init__(self, submit: Floats, num_seeds: int) -> None:
        self.window = windows(submit)
        self.num_seeds, self.count = num_seeds, int(self.window.max()) + 1
        random = np.random.default_rng(0)
        seeds = random.integers(0, num_seeds, (NUM_RESAMPLES, num_seeds))
        chosen = random.integers(0, self.count, (NUM_RESAMPLES, self.count))
        pairs = _counts(seeds, num_seeds)[:, :, None] * _counts(chosen, self.count)[:, None, :]
        self.weights: Floats = np.concatenate([pairs.reshape(NUM_RESAMPLES, -1), np.ones((1, num_seeds * self.count))])
        self.jobs: Floats = np.bincount(self.window, minlength=self.count).astype(float)
        self.num_jobs: Floats = self.weights @ np.tile(self.jobs, num_seeds)
        with_jobs = int((self.jobs > 0).sum())
        self.too_few = (
            f"jobs were submitted in {with_jobs} of {self.count} windows; an interval takes {MIN_WINDOWS}"
            if with_jobs < MIN_WINDOWS
            else None
        )

    def blocks(self, of_jobs: Sequence[Floats]) -> Floats:
        """Sums over the jobs of each seed and window."""
        return np.concatenate([np.bincount(self.window, one, self.count) for one in of_jobs])

    def mean(self, of_jobs: Sequence[Floats]) -> Floats:
        return np.asarray(self.weights @ self.blocks(of_jobs) / np.maximum(self.num_jobs, 1.0))

    def p99(self, of_jobs: Sequence[Floats]) -> Floats:
        """As `np.quantile` of the jobs of each resample; exact up to `MAX_GRID` values, then within a grid's step."""
        pooled = np.concatenate(of_jobs)
        grid = np.unique(pooled)
        if len(grid) > MAX_GRID:  # fine where the percentile is
            ranks = 1 - np.geomspace(1, 1 / len(pooled), MAX_GRID)
            grid = np.unique(np.append(np.quantile(pooled, ranks, method="inverted_cdf"), pooled.max()))
        place = np.searchsorted(grid, pooled)
        block = np.concatenate([self.window + seed * self.count for seed in range(self.num_seeds)])
        flat = np.bincount(block * len(grid) + place, minlength=self.num_seeds * self.count * len(grid))
        up_to = flat.reshape(-1, len(grid)).cumsum(1).astype(float)  # jobs of a block at most as long as the value
        found = np.empty(len(self.weights))
        for start in range(0, len(found), 128):
            for row, numbers in enumerate(self.weights[start : start + 128] @ up_to, start):
                rank = 0.99 * max(self.num_jobs[row] - 1, 0.0)
                low = int(rank)
                at = np.searchsorted(numbers, [low + 0.5, low + 1.5])
                below, above = grid[np.minimum(at, len(grid) - 1)]
                found[row] = below + (above - below) * (rank - low)
        found[-1] = np.quantile(pooled, 0.99)
        return found


def _counts(drawn: npt.NDArray[np.int64], size: int) -> Floats:
    return np.stack([(drawn == value).sum(1) for value in range(size)], 1).astype(float)


def differences(
    names: Sequence[str], submit: Floats, outcomes: Sequence[Sequence[PolicySamples]]
) -> tuple[PolicyDifference, ...]:
    """`outcomes[policy][seed]`; the first policy is the baseline."""
    resamples = _Resamples(submit, len(outcomes[0]))
    values = [_values(resamples, seeds) for seeds in outcomes]
    found = []
    for place in range(1, len(names)):
        measures = tuple(
            _difference(name, values[0][name], values[place][name], resamples.too_few) for name in _MEASURES
        )
        mean = measures[0]
        found.append(
            PolicyDifference(
                policy=names[place],
                baseline=names[0],
                measure="jct_mean_s",
                ratio=mean.value if mean.value is not None else float("nan"),
                low=mean.low,
                high=mean.high,
                verdict="undecided" if mean.low is None or mean.high is None else verdict(mean.low, mean.high),
                num_seeds=resamples.num_seeds,
                num_windows=resamples.count,
                measures=measures,
            )
        )
    return tuple(found)


# Unit, and what the windows are of.
_MEASURES = {
    "jct_mean": ("ratio", "submissions"),
    "jct_p99": ("ratio", "submissions"),
    "wait_mean": ("s", "submissions"),
    "goodput": ("share", "time"),
    "lost": ("GPU-hours", "submissions"),
}


def _values(resamples: _Resamples, seeds: Sequence[PolicySamples]) -> dict[str, Floats]:
    """Each measure in each resample, and last in the history."""
    jct = [one.jct_s for one in seeds]
    goodput = np.concatenate([one.goodput[: resamples.count] for one in seeds])
    lost = resamples.blocks([one.lost_gpu_hours for one in seeds])
    return {
        "jct_mean": resamples.mean(jct),
        "jct_p99": resamples.p99(jct),
        "wait_mean": resamples.mean([one.wait_s for one in seeds]),
        "goodput": np.asarray(resamples.weights @ goodput / len(goodput)),
        "lost": np.asarray(resamples.weights @ lost / len(seeds)),
    }


def _difference(name: str, baseline: Floats, policy: Floats, too_few: str | None) -> MeasureDifference:
    unit, windows_of = _MEASURES[name]
    value: float | None
    if unit == "ratio":
        valid = (baseline > 0) & (policy > 0)
        value = float(baseline[-1] / policy[-1]) if valid[-1] else None
        drawn = baseline[:-1][valid[:-1]] / policy[:-1][valid[:-1]]
    else:
        value, drawn = float(policy[-1] - baseline[-1]), policy[:-1] - baseline[:-1]
        value = None if np.isnan(value) else value
    reason = too_few
    if value is None:
        reason = "a time of 0 has no ratio" if unit == "ratio" else "all jobs came at once"
    elif too_few is None and np.ptp(baseline) == 0 and np.ptp(policy) == 0:
        reason = "the same in every window under both policies, so that windows say nothing of its variance"
    low, high = (None, None) if reason else (float(at) for at in np.quantile(drawn, [0.025, 0.975]))
    return MeasureDifference(
        measure=name, unit=unit, value=value, low=low, high=high, windows_of=windows_of, reason=reason
    )


def verdict(low: float, high: float) -> str:
    """From the interval of a ratio, above 1 being good."""
    if low >= 1 - SAME and high <= 1 + SAME:
        return "equivalent"
    return "better" if low > 1 else "worse" if high < 1 else "undecided"
