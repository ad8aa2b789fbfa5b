"""Compare a loader change with its baseline across an epoch boundary: the first epoch's gain may be lost later.

In: a baseline and a candidate whose steps include the end of an epoch. Out: the ratio of their times for a later epoch.
For example, if a data set caches its samples, loader workers pay off in the first epoch but cost time in all later
epochs, in which each new worker begins with an empty cache.
"""

from __future__ import annotations

import numpy as np

from flatout.records.change import ChangeSet
from flatout.records.trial import TrialResult

MIN_STEPS_AFTER = 3  # number of steps required after the first step of the later epoch


def changes_loader(changes: ChangeSet) -> bool:
    """Whether any change in the set alters how batches are loaded."""
    return any(change.patch is not None and change.patch.name == "dataloader" for change in changes.changes)


def later_epoch_ratio(baseline: TrialResult, candidate: TrialResult, steps_per_epoch: int | None) -> float | None:
    """Return the candidate's speedup for a step in a later epoch; None if either trial has no such steps."""
    times = [_later_step_s(trial, steps_per_epoch) for trial in (baseline, candidate)]
    before_s, after_s = times
    return before_s / after_s if before_s and after_s else None


def _later_step_s(trial: TrialResult, steps_per_epoch: int | None) -> float | None:
    """Return the mean step time in a later epoch, including its start; None if the trial has too few such steps.

    The steps of a trial are fewer than those of an epoch, so the first step, which starts the epoch, counts once per
    epoch and the others for the rest of it.
    """
    if not trial.epoch_ends:
        return None
    first = trial.epoch_ends[0]
    others = [seconds for place, seconds in enumerate(trial.step_s) if place > first and place not in trial.epoch_ends]
    if len(others) < MIN_STEPS_AFTER:
        return None
    num_steps = steps_per_epoch or len(others) + 1
    starts = [trial.step_s[place] for place in trial.epoch_ends]
    start_s = float(np.mean(starts))
    return (start_s + (num_steps - 1) * float(np.mean(others))) / num_steps
