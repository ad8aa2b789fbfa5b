"""Judge a candidate whose losses may differ by float noise alone: a trial of the job shows how far that carries.

In: a candidate's trial. Out: why it cannot be compared with the job, or None, and what is known with the trial that was
run for it. That trial is one of the applied changes, so its time counts as theirs; it is run at most once for them.
"""

from __future__ import annotations

from flatout.records.change import ChangeSet
from flatout.records.trial import TrialResult
from flatout.tune.budget import has_time, num_left, num_reserved
from flatout.tune.progress import Progress, Setup
from flatout.tune.trials import Refusal, refusal, run_trial

_FEWEST_LEFT = 2  # trials that the budget must hold: this one, and one more of the candidate


def refusal_beyond_noise(
    setup: Setup, progress: Progress, result: TrialResult, changes: ChangeSet, *, place: str
) -> tuple[Progress, Refusal | None]:
    """Return why a candidate's trial cannot be compared with the job; None if it can. Raises StoppedError."""
    refused = refusal(progress, result, changes)
    if refused is None or not refused.may_be_noise or not _is_worth_a_trial(setup, progress, changes):
        return progress, refused
    setup.say(f"{changes.name}: {refused.reason}: seeing how far float noise carries in this job")
    applied, reserved = progress.applied.changes, num_reserved(progress)
    progress, _ = run_trial(setup, progress, applied, place=place, num_reserved=reserved, other_rounding=True)
    return progress, refusal(progress, result, changes)


def _is_worth_a_trial(setup: Setup, progress: Progress, changes: ChangeSet) -> bool:
    if any(trial.has_other_rounding for trial in progress.current_trials):
        return False
    has_trials = num_left(setup) >= _FEWEST_LEFT + num_reserved(progress)
    return has_trials and has_time(setup, progress, progress.applied.changes, changes)
