"""The budgets of a tuning run: time and trials. The pairs for the final verdict are reserved."""

from __future__ import annotations

from flatout.records.tuning import TuningEnd, TuningStage
from flatout.tune.state import TuningState

RESERVED_PAIRS = 4  # reserved for the final verdict
CANDIDATES_BETWEEN_BASELINES = 3
LEAST_SCREENED = 4  # number of trials: two candidates between baselines


class OutOfBudgetError(Exception):
    """The time or the number of trials is used up; the changes adopted so far are kept."""

    def __init__(self, end: TuningEnd) -> None:
        super().__init__(end.ended_by)
        self.end = end


def check(state: TuningState) -> None:
    """Raise OutOfBudgetError if only the trials reserved for the final verdict are left."""
    _check_trials(state, 2 * RESERVED_PAIRS if state.needs_final_pairs else 0)
    usual_s = state.runner.usual_s or 0.0
    reserved_s = 2 * RESERVED_PAIRS * usual_s if state.needs_final_pairs else 0.0
    if state.runner.spent_s() + usual_s + reserved_s > state.options.budget_s:
        raise OutOfBudgetError(time_is_up(state))


def check_final(state: TuningState) -> None:
    """Raise OutOfBudgetError if no trial is left even for the final verdict."""
    _check_trials(state, 0)
    if state.runner.spent_s() > state.options.budget_s + 2 * RESERVED_PAIRS * (state.runner.usual_s or 0.0):
        raise OutOfBudgetError(time_is_up(state))


def time_is_up(state: TuningState, *, interrupts: TuningStage | None = None) -> TuningEnd:
    return TuningEnd(ended_by="time_budget", limit=state.options.budget_s, interrupts=interrupts)


def _check_trials(state: TuningState, num_reserved: int) -> None:
    max_trials = state.options.max_trials
    if max_trials is not None and state.runner.num_trials + num_reserved >= max_trials:
        raise OutOfBudgetError(TuningEnd(ended_by="trial_budget", limit=max_trials, num_reserved=num_reserved))


def num_affordable(state: TuningState) -> int:
    """Return how many candidates can be screened while leaving time to confirm the best candidate."""
    usual_s = state.runner.usual_s or 1.0
    left_s = state.options.budget_s - state.runner.spent_s()
    num_trials = left_s / usual_s - 2 * RESERVED_PAIRS * (2 if state.applied else 1) - 2
    if state.options.max_trials is not None:
        num_trials = min(num_trials, state.options.max_trials - state.runner.num_trials - 2 * RESERVED_PAIRS - 2)
    return max(int(num_trials * CANDIDATES_BETWEEN_BASELINES / (CANDIDATES_BETWEEN_BASELINES + 1)), 2)


def warn_of_budget(state: TuningState) -> None:
    """Warn if the time left is too short to screen and confirm even one change."""
    usual_s = state.runner.usual_s or 0.0
    left_s = state.options.budget_s - state.runner.spent_s()
    needed_s = (LEAST_SCREENED + 2 * RESERVED_PAIRS) * usual_s
    if left_s < needed_s:
        state.say(
            f"a trial takes {usual_s:.0f} s, and {left_s:.0f} s are left, but screening and confirming one change"
            f" takes at least {needed_s:.0f} s"
        )
