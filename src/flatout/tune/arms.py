"""Run trials of two arms in turn until they are judged, and judge what there is.

In: two sets of changes with the trials that they have. Out: the verdict on one of them, from all trials of both. The
first trial of a set is the one that chose it; its others alternate with those of the other arm, because speed drifts.
"""

from __future__ import annotations

import msgspec

from flatout.records.change import ChangeSet
from flatout.records.verdict import Prospect, Verdict
from flatout.trial.gates import GateResult
from flatout.tune.budget import has_time, num_left, used_up
from flatout.tune.progress import Progress, Setup
from flatout.tune.trials import check_gates, run_trial
from flatout.verdict.arms import Asked, judge_arms
from flatout.verdict.prospect import is_worth_more, what_next

MAX_FAILED = 2  # trials of a comparison


class ComparedArms(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate, what it is compared with, and how many sets had a chance to be that candidate."""

    candidate: ChangeSet
    against: ChangeSet
    num_screened: int


class GatedVerdict(msgspec.Struct, frozen=True, kw_only=True):
    verdict: Verdict
    gate: GateResult  # of the candidate's last trial


def judged(setup: Setup, progress: Progress, arms: ComparedArms, *, is_last: bool = False) -> Verdict:
    """Return the verdict on the candidate from all trials of both arms so far."""
    trials = progress.evidence.named(arms.candidate, arms.against)
    return judge_arms(trials, arms.candidate.name, is_last=is_last, **_asked(setup, progress, arms))


def prospects(setup: Setup, progress: Progress, arms: ComparedArms) -> tuple[Prospect, ...]:
    """Return what each analysis to come is likely to show; () if none is left, or the trials give no estimate."""
    trials = progress.evidence.named(arms.candidate, arms.against)
    return what_next(trials, arms.candidate.name, **_asked(setup, progress, arms))


def _asked(setup: Setup, progress: Progress, arms: ComparedArms) -> Asked:
    """Return what is asked about the candidate, by a verdict and by what may follow it."""
    trials = progress.evidence.of(arms.candidate)
    return {
        "baseline": arms.against.name,
        "objective": progress.objective,
        "num_screened": arms.num_screened,
        "chosen_by": frozenset(trial.index for trial in trials[:1]),
        "min_effect": setup.options.min_effect,
    }


def run_until_judged(
    setup: Setup, progress: Progress, arms: ComparedArms, *, place: str, num_reserved: int = 0
) -> tuple[Progress, GatedVerdict]:
    """Run trials of both arms in turn until the verdict is final or hopeless. Raises StoppedError."""
    gate = GateResult(is_passed=True, reason="")
    num_failed = 0
    while True:
        verdict = judged(setup, progress, arms, is_last=num_failed > MAX_FAILED)
        if not gate.is_passed or not _is_open(setup, progress, arms, verdict):
            return progress, GatedVerdict(verdict=verdict, gate=gate)
        is_candidates_turn = _is_candidates_turn(setup, progress, arms, num_reserved)
        changes = arms.candidate if is_candidates_turn else arms.against
        progress, result = run_trial(setup, progress, changes, place=place, num_reserved=num_reserved)
        num_failed += not result.is_complete
        if is_candidates_turn:
            gate = check_gates(progress, result, changes)


def _is_candidates_turn(setup: Setup, progress: Progress, arms: ComparedArms, num_reserved: int) -> bool:
    """Whether the next trial is the candidate's: the arms alternate, as long as the budget has time for one of each.

    After that the candidate has what is left: of the two it has had fewer trials.
    """
    if not progress.evidence.ends_with(arms.candidate):
        return True
    has_candidate = used_up(setup, progress, arms.candidate, num_reserved=num_reserved) is None
    return has_candidate and not has_time(setup, progress, arms.against, arms.candidate)


def _is_open(setup: Setup, progress: Progress, arms: ComparedArms, verdict: Verdict) -> bool:
    """Whether more trials may still show that the candidate is better.

    Stopping if that is unlikely adds no false claim, because the verdict stays `undecided`.
    """
    if verdict.next_analysis is None:
        return False
    within_budget = [chance for chance in prospects(setup, progress, arms) if chance.num_trials <= num_left(setup)]
    return not within_budget or is_worth_more(within_budget)
