"""Select a few candidates to confirm. The estimates serve only this selection, and are never claims.

With identical arms, the best of 50 looks 2.8 % better. So each round runs short trials of all candidates with
baselines between them, and the best is confirmed on fresh pairs (`judge(fresh_after=...)`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from flatout.errors import UsageError
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.verdict import Objective, ScreenedArm
from flatout.verdict.cost import missing, trial_costs

BASELINE_EVERY = 4


def round_order(arms: Sequence[str], *, is_reversed: bool = False) -> tuple[str, ...]:
    """Return the order in which one round runs: a baseline first, last, and after every fourth candidate.

    Rounds alternate in direction, so that a drift does not favour the same candidates twice.
    """
    order = [BASELINE]
    for position, arm in enumerate(reversed(arms) if is_reversed else arms, start=1):
        order.append(arm)
        if position % BASELINE_EVERY == 0 or position == len(arms):
            order.append(BASELINE)
    return tuple(order)


def screen(trials: Sequence[TrialResult], *, objective: Objective = "step_s") -> tuple[ScreenedArm, ...]:
    """Return each candidate's speedup relative to the nearest baselines before and after it, best first.

    Baselines from before an interruption say little about the machine's speed now, so they count only if there are none
    of the same session. Candidates without a complete trial are excluded; several trials of one candidate are averaged.
    """
    usable = sorted((t for t in trials if missing(t, objective) is None), key=lambda t: t.index)
    session = {trial.index: trial.session for trial in usable}
    logs = {index: cost.log for index, cost in trial_costs(usable, objective).items()}
    arms: dict[str, list[int]] = defaultdict(list)
    for trial in usable:
        arms[trial.arm].append(trial.index)
    baselines = arms.pop(BASELINE, None)
    if baselines is None:
        raise UsageError("screening needs a baseline that completes")
    around = [(index, logs[index]) for index in baselines]
    result = []
    for arm, indices in arms.items():
        gains = []
        for index in indices:
            near = [(i, log) for i, log in around if session[i] == session[index]] or around
            gains.append(_between(near, index) - logs[index])
        result.append(ScreenedArm(arm=arm, speedup=math.exp(sum(gains) / len(gains)), num_trials=len(gains)))
    return tuple(sorted(result, key=lambda screened: (-screened.speedup, screened.arm)))


def _between(costs: Sequence[tuple[int, float]], index: int) -> float:
    """Interpolate the baseline's cost at a trial between the nearest baselines before and after it."""
    before = [cost for cost in costs if cost[0] < index]
    after = [cost for cost in costs if cost[0] > index]
    if not before or not after:
        return (before or after)[-1 if before else 0][1]
    (i, low), (k, high) = before[-1], after[0]
    return low + (high - low) * (index - i) / (k - i)
