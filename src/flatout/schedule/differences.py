"""Policies against the first one, each with an interval over seeds and windows of the history.

In: the completion times of all jobs under each policy and seed. Out: `PolicyDifference`s. Jobs are grouped by the
window in which they were submitted; seeds and windows are drawn again with replacement, together for both policies,
2,000 times (paired block bootstrap; percentile intervals). A queue that lasts from one window into the next
ties their jobs together, so windows are long (a week, where the history has ten), and intervals of few
windows are too narrow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from flatout.records.replay import PolicyDifference

WEEK = 7 * 86_400.0
NUM_RESAMPLES = 2000
SAME = 0.02  # ratios within 2 % of 1 are equivalent
Floats = npt.NDArray[np.float64]


def windows(submit: Floats) -> npt.NDArray[np.int64]:
    """The number of the window of each job: weeks, or tenths of a history shorter than ten weeks, at most 52."""
    span = float(submit.max() - submit.min()) if len(submit) else 0.0
    count = int(min(52, max(10, span // WEEK)))
    return np.asarray(np.minimum(count - 1, (submit - submit.min()) / max(span, 1e-9) * count).astype(np.int64))


def differences(names: Sequence[str], submit: Floats, jct: Sequence[Sequence[Floats]]) -> tuple[PolicyDifference, ...]:
    """`jct[policy][seed][job]`; the first policy is the baseline."""
    window = windows(submit)
    count = int(window.max()) + 1
    sums = np.array([[np.bincount(window, one, count) for one in seeds] for seeds in jct])  # policy x seed x window
    numbers = np.bincount(window, minlength=count).astype(float)
    random = np.random.default_rng(0)
    num_seeds = sums.shape[1]
    seeds = random.integers(0, num_seeds, (NUM_RESAMPLES, num_seeds))
    chosen = random.integers(0, count, (NUM_RESAMPLES, count))
    weights = numbers[chosen].sum(1)
    means = np.stack([sums[:, seeds[i]][:, :, chosen[i]].sum((1, 2)) for i in range(NUM_RESAMPLES)], 1)
    means = means / np.maximum(weights * num_seeds, 1.0)
    whole = sums.sum((1, 2)) / (numbers.sum() * num_seeds)
    found = []
    for place in range(1, len(names)):
        valid = (means[place] > 0) & (means[0] > 0)
        ratios = means[0][valid] / means[place][valid]
        low, high = (float(value) for value in np.quantile(ratios, [0.025, 0.975]))
        found.append(
            PolicyDifference(
                policy=names[place],
                baseline=names[0],
                measure="jct_mean_s",
                ratio=float(whole[0] / whole[place]),
                low=low,
                high=high,
                verdict=verdict(low, high),
                num_seeds=num_seeds,
                num_windows=count,
            )
        )
    return tuple(found)


def verdict(low: float, high: float) -> str:
    """From the interval of a ratio, above 1 being good."""
    if low >= 1 - SAME and high <= 1 + SAME:
        return "equivalent"
    return "better" if low > 1 else "worse" if high < 1 else "undecided"
