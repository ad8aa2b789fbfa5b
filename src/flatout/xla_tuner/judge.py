"""Judge a change by pairs of trials, one unchanged and one changed, and by the losses that the script reported.

In: step times and losses. Out: a speedup with its interval, and a verdict. The interval is Student's of the log ratios
of the pairs; its level holds for all changes together, and for all pairs after which it is looked at (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy import stats  # type: ignore[import-untyped, unused-ignore]

from flatout.records.xla_tuning import XlaChange, XlaTrial, XlaTried

LEVEL = 0.05
MIN_PAIRS, MOST_PAIRS = 3, 6
_NUM_LOOKS = MOST_PAIRS - MIN_PAIRS + 1
MIN_EFFECT = 0.01  # a speedup below it is not worth a change
EXACT_LOSS, ROUNDED_LOSS = 1e-5, 2e-2  # relative deviations of losses that always pass
LOSS_SPREADS = 3.0  # of the unchanged trials' own deviations


def speedup_of(pairs: Sequence[tuple[float, float]], num_changes: int) -> tuple[float, tuple[float, float] | None]:
    """Return how many times as fast the change is, and the interval; None with a single pair."""
    logs = np.log([before / after for before, after in pairs])
    middle = float(logs.mean())
    if len(logs) < 2:
        return math.exp(middle), None
    quantile = float(stats.t.ppf(1 - LEVEL / num_changes / _NUM_LOOKS / 2, len(logs) - 1))
    half = quantile * float(logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(middle), (math.exp(middle - half), math.exp(middle + half))


def judged(
    change: XlaChange, pairs: Sequence[tuple[XlaTrial, XlaTrial]], baselines: Sequence[XlaTrial], num_changes: int
) -> XlaTried:
    """Return the verdict on a change. A trial that failed, or a loss that deviates, decides before any time does."""
    failed = next((after.problem for _, after in pairs if after.problem), None)
    gate = loss_gate(change, [after for _, after in pairs], baselines)
    measure: Literal["step", "start"] = "start" if change.is_of_start else "step"
    times = [
        (before, after)
        for one, other in pairs
        if (before := getattr(one, f"{measure}_s")) and (after := getattr(other, f"{measure}_s"))
    ]
    speedup, interval = speedup_of(times, num_changes) if times else (None, None)
    verdict, reason = _verdict(interval, len(times))
    if gate == "failed":
        verdict, reason = "unsafe", "its losses are not those of the unchanged job"
    if failed is not None:
        verdict, reason = "failed", failed
    return XlaTried(
        change=change,
        verdict=verdict,
        measure=measure,
        speedup=speedup,
        interval=interval,
        num_pairs=len(times),
        loss_gate=gate,
        reason=reason,
    )


def _verdict(
    interval: tuple[float, float] | None, num_pairs: int
) -> tuple[Literal["better", "worse", "equivalent", "undecided", "not reached", "unsafe", "failed"], str]:
    if num_pairs == 0:
        return "not reached", "the budget ended before"
    if interval is None or num_pairs < MIN_PAIRS:
        return "undecided", f"a verdict needs {MIN_PAIRS} pairs"
    low, high = interval
    if low > 1 + MIN_EFFECT:
        return "better", ""
    if high < 1:
        return "worse", ""
    if low > 1 / (1 + MIN_EFFECT) and high < 1 + MIN_EFFECT:
        return "equivalent", ""
    return "undecided", "the interval allows both"


def loss_gate(
    change: XlaChange, changed: Sequence[XlaTrial], baselines: Sequence[XlaTrial]
) -> Literal["passed", "failed", "no loss was reported"]:
    """Compare the losses of each changed trial with those of the unchanged ones, step by step."""
    expected = [trial.losses for trial in baselines if trial.losses]
    reported = [trial.losses for trial in changed if trial.problem is None]
    if not expected or not reported:
        return "no loss was reported"
    if not all(reported):
        return "failed"  # the unchanged job reports its losses
    count = min(map(len, expected))
    matrix = np.array([each[:count] for each in expected])
    spread = float(np.abs(matrix - matrix[0]).max()) if len(matrix) > 1 else 0.0
    floor = (EXACT_LOSS if change.safety == "exact" else ROUNDED_LOSS) * float(np.abs(matrix).max())
    allowed = max(LOSS_SPREADS * spread, floor)
    for losses in reported:
        shared = min(count, len(losses))
        deviations = np.abs(np.array(losses[:shared]) - matrix[:, :shared]).min(axis=0)
        if not np.isfinite(losses[:shared]).all() or deviations.max(initial=0.0) > allowed:
            return "failed"
    return "passed"
