"""The budgets of a tuning run: time and trials, and what can be done in what is left of them."""

from __future__ import annotations

import math

import msgspec

from flatout.records.change import ChangeSet
from flatout.records.tuning import TuningEnd, TuningStage
from flatout.tune.progress import Progress, Setup

CANDIDATES_BETWEEN_BASELINES = 3
NUM_CONFIRMING = 4  # fresh trials of the best candidate and of the baseline, two of each
NUM_FINAL = 3  # trials that compare changes adopted one after another with the unchanged job
FEW_TRIALS = 12  # in a budget of fewer trials, the baseline has two before the first candidate
NUM_FLOOR_TRIALS, FEWEST_FLOOR_TRIALS = 3, 2


def used_up(
    setup: Setup, progress: Progress, changes: ChangeSet | None = None, *, num_reserved: int = 0
) -> TuningEnd | None:
    """Return the budget in which not even one trial is left, besides those that are reserved; None if one is.

    A trial of `changes` takes as long as their last one did, or as a usual trial if they had none.
    """
    max_trials = setup.options.max_trials
    if max_trials is not None and setup.runner.num_trials + num_reserved >= max_trials:
        return TuningEnd(ended_by="trial_budget", limit=max_trials, num_reserved=num_reserved)
    needed_s = _trial_s(setup, progress, changes) + num_reserved * (setup.runner.usual_s or 0.0)
    left_s = setup.options.budget_s - setup.runner.spent_s()
    if needed_s <= left_s:
        return None
    return msgspec.structs.replace(time_is_up(setup), left_s=max(left_s, 0.0), needed_s=needed_s)


def has_time(setup: Setup, progress: Progress, *sets: ChangeSet) -> bool:
    """Whether the time that is left holds one trial of each set of changes."""
    needed_s = sum(_trial_s(setup, progress, changes) for changes in sets)
    return needed_s <= setup.options.budget_s - setup.runner.spent_s()


def _trial_s(setup: Setup, progress: Progress, changes: ChangeSet | None) -> float:
    """Return how long a trial of these changes is expected to take; 0 if no trial has run."""
    usual_s = setup.runner.usual_s or 0.0
    if changes is None:
        return usual_s
    took_s = [trial.took_s for trial in progress.evidence.of(changes) if trial.took_s is not None]
    return min(took_s[-1], usual_s) if took_s else usual_s


def num_reserved(progress: Progress) -> int:
    """Return how many trials are kept for comparing the applied changes with the unchanged job."""
    return 0 if progress.is_claimed else NUM_FINAL


def time_is_up(setup: Setup, *, interrupts: TuningStage | None = None) -> TuningEnd:
    return TuningEnd(ended_by="time_budget", limit=setup.options.budget_s, interrupts=interrupts)


def num_left(setup: Setup) -> int:
    """Return how many trials of the usual length are left in the budget."""
    left_s = setup.options.budget_s - setup.runner.spent_s()
    by_time = left_s / (setup.runner.usual_s or 1.0)
    if setup.options.max_trials is not None:
        by_time = min(by_time, setup.options.max_trials - setup.runner.num_trials)
    return max(math.floor(by_time), 0)


def num_affordable(setup: Setup, progress: Progress) -> int:
    """Return how many candidates can be screened while leaving trials to confirm the best candidate: at least one."""
    num_trials = num_left(setup) - NUM_CONFIRMING - (NUM_FINAL if progress.applied else 0)
    return max(num_trials * CANDIDATES_BETWEEN_BASELINES // (CANDIDATES_BETWEEN_BASELINES + 1), 1)


def num_floor_trials(setup: Setup) -> int:
    """Return how many trials the unchanged job has before the first candidate, once the first of them has run."""
    return FEWEST_FLOOR_TRIALS if num_left(setup) < FEW_TRIALS else NUM_FLOOR_TRIALS
