"""Confirm the best candidates by further trials, adopt the first that is better, and compare the final set.

The baseline of a confirmation has the changes that are applied already. What is claimed is always about the unchanged
job: the first changes are adopted on that claim, and those adopted later are compared with it once more, on the trials
of both. The error rate of all claims together is divided among the rounds (half of what is left to each), and a round's
share among the sets that it tried: any of them could have been the one that looked best.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.change import Change
from flatout.records.tuning import TriedOutcome, TunedChange
from flatout.records.verdict import Verdict
from flatout.tune.arms import ComparedArms, GatedVerdict, judged, run_until_judged
from flatout.tune.budget import num_reserved
from flatout.tune.epoch_check import EpochCheck, check_epoch, check_epoch_in_trials
from flatout.tune.progress import NOTHING, Applied, Progress, Round, Setup, ShownGain, StoppedError
from flatout.tune.screening import Candidate, Screening, clear_speedup
from flatout.tune.trials import check_gates
from flatout.tune.tried import tried_set

LIKELY_GAIN = 0.9  # probability from which a candidate without a verdict is left open
MIN_CONFIRMED = 2  # candidates of a round that look better at all


def confirm(setup: Setup, progress: Progress, this_round: Round, screening: Screening) -> Progress:
    """Adopt the best candidate that its trials confirm: of all that were better than noise, but at least of two.

    Raises StoppedError.
    """
    before, clear = progress.applied, clear_speedup(progress)
    for place, candidate in enumerate(screening.candidates):
        if place >= MIN_CONFIRMED and candidate.estimate < clear:
            progress = _not_better(setup, progress, this_round, candidate, "no better than noise")
            continue
        progress = _confirm(setup, progress, this_round, screening, candidate)
        if progress.applied != before:
            return progress
    return progress


def _not_better(setup: Setup, progress: Progress, this_round: Round, candidate: Candidate, why: str) -> Progress:
    """Record a candidate that had no trial but its own, when nothing better was confirmed."""
    added = progress.applied.added(candidate.change_set)
    reason = f"{candidate.estimate:.2f}x in its own trial: {why}"
    tried = tried_set(setup, this_round, added, "not better", reason, screened=candidate.estimate)
    outcomes = progress.outcomes.with_tried(tried)
    if len(added) == 1:
        outcomes = outcomes.excluding([added[0].name])
    return progress.with_outcomes(outcomes)


def _confirm(
    setup: Setup, progress: Progress, this_round: Round, screening: Screening, candidate: Candidate
) -> Progress:
    """Run trials of one candidate until it is judged, and record or adopt it."""
    change_set, added = candidate.change_set, progress.applied.added(candidate.change_set)
    setup.say(f"round {this_round.number}: confirming {_listed(added)} ({candidate.estimate:.2f}x in one trial)")
    epoch = check_epoch(setup, progress, this_round, change_set)
    if epoch is not None and not epoch.is_held:
        return _refused(setup, progress, this_round, candidate, "not confirmed", epoch.reason, None)
    arms = ComparedArms(
        candidate=change_set,
        against=progress.applied.changes,
        num_screened=_num_screened(progress, this_round, screening),
    )
    stopped: StoppedError | None = None
    try:
        progress, comparison = run_until_judged(
            setup, progress, arms, place=f"{this_round.place}, confirmation", num_reserved=num_reserved(progress)
        )
    except StoppedError as error:
        stopped, progress = error, error.progress
        comparison = _last_comparison(setup, progress, arms)
    if epoch is not None and not epoch.is_checked and comparison.verdict.verdict == "better":
        trials = progress.evidence.of(arms.against), progress.evidence.of(change_set)
        epoch = check_epoch_in_trials(progress, *trials) or epoch
    is_hopeless = stopped is None and comparison.verdict.num_candidates == 1 and comparison.gate.is_passed
    if is_hopeless and (comparison.verdict.probability_better or 0.0) >= LIKELY_GAIN:
        return _left_open(setup, progress, this_round, candidate)
    if is_hopeless:
        why = "further trials are unlikely to show a gain"
        return _not_better(setup, progress, this_round, candidate, why)
    progress = _with_verdict(setup, progress, this_round, screening, candidate, comparison, epoch)
    if stopped is not None:
        raise StoppedError(progress, msgspec.structs.replace(stopped.end, interrupts="confirmation"))
    return progress


def _left_open(setup: Setup, progress: Progress, this_round: Round, candidate: Candidate) -> Progress:
    """Record a candidate that probably gains, although the trials that are left are unlikely to show it."""
    added = progress.applied.added(candidate.change_set)
    reason = f"{candidate.estimate:.2f}x in one trial, and the trials that are left are unlikely to show a gain"
    open_set = tried_set(setup, this_round, added, "not reached", reason, screened=candidate.estimate)
    return progress.with_outcomes(progress.outcomes.with_pending(open_set))


def _num_screened(progress: Progress, this_round: Round, screening: Screening) -> int:
    """Return by how much the error rate is divided for one candidate.

    Only a comparison with the unchanged job is a claim; other changes are adopted for a claim that follows.
    """
    num_tried = max(screening.num_tried, 1)
    return num_tried if progress.applied else num_tried * 2**this_round.number


def _last_comparison(setup: Setup, progress: Progress, arms: ComparedArms) -> GatedVerdict:
    """Judge the trials so far, after which no more will come."""
    verdict = judged(setup, progress, arms, is_last=True)
    gates = [check_gates(progress, trial, arms.candidate) for trial in progress.evidence.of(arms.candidate)]
    failed = [gate for gate in gates if not gate.is_passed]
    return GatedVerdict(verdict=verdict, gate=(failed or gates)[-1])


def _with_verdict(
    setup: Setup,
    progress: Progress,
    this_round: Round,
    screening: Screening,
    candidate: Candidate,
    comparison: GatedVerdict,
    epoch: EpochCheck | None,
) -> Progress:
    """Adopt the candidate if it is better and passes all checks, and record its outcome."""
    verdict, gate = comparison.verdict, comparison.gate
    if not gate.is_passed:
        return _refused(setup, progress, this_round, candidate, gate.outcome, gate.reason, verdict)
    if epoch is not None and not epoch.is_held:
        return _refused(setup, progress, this_round, candidate, "not confirmed", epoch.reason, verdict)
    if verdict.verdict == "better":
        return _adopted(setup, progress, this_round, screening, candidate, comparison, epoch)
    if verdict.num_candidates < 2:  # it had no trial but the first
        return progress
    added = progress.applied.added(candidate.change_set)
    tried = tried_set(
        setup, this_round, added, "not confirmed", verdict.reason, screened=candidate.estimate, verdict=verdict
    )
    outcomes = progress.outcomes.with_tried(tried)
    if len(added) == 1:
        outcomes = outcomes.excluding([added[0].name])
    return progress.with_outcomes(outcomes)


def _refused(
    setup: Setup,
    progress: Progress,
    this_round: Round,
    candidate: Candidate,
    outcome: TriedOutcome,
    reason: str,
    verdict: Verdict | None,
) -> Progress:
    """Record the candidate as tried, and exclude its changes from later rounds if each had a separate trial."""
    added = progress.applied.added(candidate.change_set)
    tried = tried_set(setup, this_round, added, outcome, reason, screened=candidate.estimate, verdict=verdict)
    excluded = [change.name for change in added if change.name not in candidate.untried]
    return progress.with_outcomes(progress.outcomes.with_tried(tried).excluding(excluded))


def _adopted(
    setup: Setup,
    progress: Progress,
    this_round: Round,
    screening: Screening,
    candidate: Candidate,
    comparison: GatedVerdict,
    epoch: EpochCheck | None,
) -> Progress:
    """Apply the candidate's changes from now on."""
    change_set, added = candidate.change_set, progress.applied.added(candidate.change_set)
    verdict, reason = comparison.verdict, comparison.gate.reason
    if epoch is not None:
        reason = f"{reason}; {epoch.reason}"
    is_unchecked = epoch is not None and not epoch.is_checked
    if epoch is not None and is_unchecked:
        progress = progress.with_note(f"{_listed(added)} was adopted, and {epoch.reason}")
    tried = tried_set(setup, this_round, added, "adopted", reason, screened=candidate.estimate, verdict=verdict)
    progress = progress.with_outcomes(progress.outcomes.with_tried(tried))
    progress = _without_other_values(setup, progress, this_round, screening, added)
    added_knobs = {change.knob.name for change in added}
    kept = [tuned for tuned in progress.applied.each if tuned.change.knob.name not in added_knobs]
    new = [
        TunedChange(
            change=change,
            verdict=verdict if len(added) == 1 else None,
            prediction=this_round.predictions.get(change.name),
            is_shown_alone=change.name not in candidate.not_shown,
            had_own_trial=change.name not in candidate.untried,
        )
        for change in added
    ]
    applied = Applied(
        changes=change_set,
        each=(*kept, *new),
        covers_first_epoch_only=progress.applied.covers_first_epoch_only or is_unchecked,
    )
    claim = progress.claim if progress.applied else ShownGain(applied=applied, verdict=verdict)
    return msgspec.structs.replace(progress, applied=applied, claim=claim)


def _without_other_values(
    setup: Setup, progress: Progress, this_round: Round, screening: Screening, adopted: Sequence[Change]
) -> Progress:
    """Exclude other values of the adopted knobs: the one applied before, and those that were clearly worse.

    A value that was about as good is tried again later, relative to the changes applied then: one trial cannot decide
    which is better.
    """
    adopted_knobs = {change.knob.name for change in adopted}
    replaced = [change.name for change in progress.applied.changes.changes if change.knob.name in adopted_knobs]
    outcomes = progress.outcomes.excluding(replaced)
    screened_alone: dict[str, tuple[Change, float]] = {}
    for candidate in screening.candidates:
        added = progress.applied.added(candidate.change_set)
        if len(added) == 1:
            screened_alone[added[0].name] = added[0], candidate.estimate
    clear = clear_speedup(progress)
    for change in adopted:
        if change.name not in screened_alone:
            continue
        _, best = screened_alone[change.name]
        for name, (other, estimate) in screened_alone.items():
            is_other_value = name != change.name and other.knob.name == change.knob.name
            if is_other_value and estimate * clear < best:
                reason = f"{estimate:.2f}x in its own trial, {change.name} {best:.2f}x"
                tried = tried_set(setup, this_round, (other,), "not better", reason, screened=estimate)
                outcomes = outcomes.with_tried(tried).excluding([name])
    return progress.with_outcomes(outcomes)


def claim_applied(setup: Setup, progress: Progress, *, may_run: bool) -> Progress:
    """Compare the applied changes with the unchanged job, if that is not done; keep only what was shown to be better.

    Changes that were adopted after the last claim, and cannot be claimed with the others, are given up.
    """
    if progress.is_claimed:
        return progress
    setup.say(f"final: comparing {progress.applied.changes.name} with the unchanged job")
    num_sets = len({trial.changes.name for trial in progress.evidence.trials} - {NOTHING.name})
    last_round = max(tried.round for tried in progress.outcomes.tried)
    arms = ComparedArms(candidate=progress.applied.changes, against=NOTHING, num_screened=num_sets * 2**last_round)
    comparison = _last_comparison(setup, progress, arms)
    if may_run and comparison.gate.is_passed and comparison.verdict.verdict != "better":
        try:
            progress, comparison = run_until_judged(setup, progress, arms, place="final")
        except StoppedError as stopped:
            progress = stopped.progress
            comparison = _last_comparison(setup, progress, arms)
    if comparison.gate.is_passed and comparison.verdict.verdict == "better":
        claim = ShownGain(applied=progress.applied, verdict=comparison.verdict)
        return msgspec.structs.replace(progress, claim=claim)
    reason = comparison.verdict.reason
    if not comparison.gate.is_passed:
        reason = f"it failed a gate: {comparison.gate.reason}"
    name = progress.applied.changes.name
    progress = progress.with_note(f"{name} was not shown to be better than the unchanged job: {reason}")
    applied = progress.claim.applied if progress.claim is not None else Applied()
    return msgspec.structs.replace(progress, applied=applied)


def _listed(changes: Sequence[Change]) -> str:
    return " + ".join(change.name for change in changes)
