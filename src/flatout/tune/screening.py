"""Screening: one trial per candidate between baselines. It selects candidates to confirm, and claims nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec

from flatout.change.dataloader import WORKERS
from flatout.records.change import Change, ChangeSet
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.tuning import Screened
from flatout.tune.budget import CANDIDATES_BETWEEN_BASELINES, NUM_CONFIRMING, num_left, num_reserved
from flatout.tune.bundle import disappoints, hides_a_member
from flatout.tune.noise_check import refusal_beyond_noise
from flatout.tune.progress import Outcomes, Progress, Round, Setup
from flatout.tune.trials import run_trial
from flatout.tune.tried import not_reached, tried_set
from flatout.verdict.cost import missing
from flatout.verdict.screening import screen
from flatout.verdict.student import t_quantile

MIN_SCREENED = 1.02  # a smaller speedup in one trial is not worth confirming
NOISE_LEVEL = 0.025  # the chance that a change without effect looks better than noise in its own trial
BUNDLE_SETS = 2  # a bundle counts as two sets that were tried: it may be taken apart after it was adopted
CLEAR_IF_UNKNOWN = 1.2  # a speedup in one trial that is taken to be better than noise of unknown size
ALIKE = 1.05  # a ratio of two estimates of one trial each, up to which values of one knob gain about the same
OUTSTANDING = 1.2  # a speedup in one trial, better than noise, that is confirmed before other changes have a trial


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes to confirm."""

    change_set: ChangeSet
    estimate: float  # speedup, from one trial
    not_shown: frozenset[str] = frozenset()  # names of its changes that looked no better than noise in their own trials
    untried: frozenset[str] = frozenset()  # names of its changes that had no separate trial


class Screening(msgspec.Struct, frozen=True, kw_only=True):
    candidates: tuple[Candidate, ...] = ()  # sets that look better, best first
    num_tried: int = 0  # sets that had a trial


def screen_candidates(setup: Setup, progress: Progress, this_round: Round) -> tuple[Progress, Screening]:
    """Try the changes that do not interact as one set; if it disappoints, each change, and the better ones together."""
    bundle = this_round.bundle
    if bundle is None or progress.evidence.has(bundle):
        return _screen_alone(setup, progress, this_round)
    progress, candidate = _screen_bundle(setup, progress, this_round, bundle)
    if candidate is not None:
        return progress, Screening(candidates=(candidate,), num_tried=BUNDLE_SETS)
    progress, screening = _screen_alone(setup, progress, this_round)
    return progress, msgspec.structs.replace(screening, num_tried=screening.num_tried + BUNDLE_SETS)


def _screen_bundle(
    setup: Setup, progress: Progress, this_round: Round, bundle: ChangeSet
) -> tuple[Progress, Candidate | None]:
    """Run one trial of a bundle; return it as a candidate if it gains what was estimated."""
    members = progress.applied.added(bundle)
    setup.say(f"round {this_round.number}: trying {_listed(members)} together")
    progress, result = _try_set(setup, progress, this_round, bundle)
    for change in members:
        others = _listed([other for other in members if other is not change])
        progress = _pending(setup, progress, this_round, change, f"it was tried only together with {others}")
    progress, refused = refusal_beyond_noise(setup, progress, result, bundle, place=this_round.place)
    if refused is not None:
        setup.say(f"together they do not pass, trying each alone: {refused.reason}")
        return progress, None
    if hides_a_member(progress, result, members):
        setup.say("together they do not pass, trying each alone: other samples hide what the others do to the losses")
        return progress, None
    progress = _with_baseline_of_this_session(setup, progress, this_round, result)
    estimate = estimated_speedup(progress, bundle)
    # With too few trials left to try each alone and to confirm the best, the set is worth more than its parts.
    is_short = num_left(setup) < len(members) + NUM_CONFIRMING
    is_poor = not is_short and disappoints(estimate or 0.0, members, this_round)
    if estimate is None or is_poor or estimate < clear_speedup(progress):
        setup.say("together they gain less than estimated: trying each alone")
        return progress, None
    reason = f"{estimate:.2f}x in one trial, and no further trial was made"
    chosen = tried_set(setup, this_round, members, "not reached", reason, screened=estimate)
    progress = progress.with_outcomes(progress.outcomes.with_pending(chosen))
    untried = frozenset(change.name for change in members)
    return progress, Candidate(change_set=bundle, estimate=estimate, untried=untried)


def _screen_alone(setup: Setup, progress: Progress, this_round: Round) -> tuple[Progress, Screening]:
    """Run one trial of each change, with baselines between them, and one trial of the better changes together.

    Only changes that are better than noise in their own trials are tried together: any other change could be adopted
    with them without a gain, and has its trial in the next round. If none is better than noise, all are tried together.
    """
    setup.say(f"round {this_round.number}: screening {_listed(this_round.candidates)}")
    progress = _with_fresh_baseline(setup, progress, this_round)
    sets: list[ChangeSet] = []
    num_tried = 0
    is_outstanding = False
    for place, change in enumerate(this_round.candidates):
        change_set = progress.applied.with_added([change], this_round.facts)
        if change_set is None:
            progress = _pending(setup, progress, this_round, change, "it cannot be combined with the applied changes")
            continue
        shown = _outdone_by(change, progress, this_round, sets)
        if shown is not None:
            reason = f"another change for the same cause had already gained {shown:.2f}x or more"
            reason = f"it was deferred to the next round: {reason}"
            progress = _pending(setup, progress, this_round, change, reason)
            progress = progress.with_outcomes(progress.outcomes.deferring(change.name))
            continue
        progress, is_comparable = _screen_one(setup, progress, this_round, change, change_set)
        sets += [change_set] if is_comparable else []
        num_tried += 1
        is_outstanding = _is_outstanding(progress, this_round, sets, untried=this_round.candidates[place + 1 :])
        if is_outstanding:
            progress = _deferring(setup, progress, this_round, this_round.candidates[place + 1 :])
            break
        if num_tried % CANDIDATES_BETWEEN_BASELINES == 0:
            progress = _with_fresh_baseline(setup, progress, this_round)
    if sets:
        progress = _with_baseline_of_this_session(setup, progress, this_round, progress.evidence.trials[-1].result)
    progress, better = _better_ones(setup, progress, this_round, sets)
    if is_outstanding:
        return progress, Screening(candidates=tuple(better), num_tried=num_tried)
    progress, together = _screen_together(setup, progress, this_round, better)
    if together is not None:
        num_tried += 1
        place = sum(candidate.estimate >= together.estimate for candidate in better)
        better.insert(place, together)
    return progress, Screening(candidates=tuple(better), num_tried=num_tried)


def _screen_one(
    setup: Setup, progress: Progress, this_round: Round, change: Change, change_set: ChangeSet
) -> tuple[Progress, bool]:
    """Run one trial of a change; return whether it can be compared with the baseline."""
    progress, result = _try_set(setup, progress, this_round, change_set)
    progress = progress.with_outcomes(progress.outcomes.trying(change.name))
    progress, refused = refusal_beyond_noise(setup, progress, result, change_set, place=this_round.place)
    if refused is not None:
        setup.say(f"{change_set.name}: {refused.outcome}: {refused.reason}")
        tried = tried_set(setup, this_round, (change,), refused.outcome, refused.reason)
        return progress.with_outcomes(progress.outcomes.with_tried(tried).excluding([change.name])), False
    estimate = estimated_speedup(progress, change_set)
    reason = "it was tried, but has no baseline trial for comparison"
    if estimate is not None:
        reason = f"{estimate:.2f}x in its own trial, and no further trial was made"
    outcomes = progress.outcomes.with_pending(not_reached(setup, this_round, change, reason, screened=estimate))
    return progress.with_outcomes(outcomes), True


def _try_set(
    setup: Setup, progress: Progress, this_round: Round, change_set: ChangeSet
) -> tuple[Progress, TrialResult]:
    return run_trial(setup, progress, change_set, place=this_round.place, num_reserved=num_reserved(progress))


def _better_ones(
    setup: Setup, progress: Progress, this_round: Round, sets: Sequence[ChangeSet]
) -> tuple[Progress, list[Candidate]]:
    """Return the sets that look better, best first, and record the outcome of the others."""
    better: list[Candidate] = []
    outcomes = progress.outcomes
    estimates = _estimated_speedups(progress, sets)
    for change_set in sets:
        change = change_set.changes[-1]
        estimate = estimates.get(change_set.name)
        if estimate is None:
            continue
        outcomes = _kept_for_history(outcomes, progress, this_round, change, estimate)
        if estimate < MIN_SCREENED:
            reason = f"{estimate:.2f}x in its own trial"
            tried = tried_set(setup, this_round, (change,), "not better", reason, screened=estimate)
            outcomes = outcomes.with_tried(tried).excluding([change.name])
            continue
        reason = f"{estimate:.2f}x in its own trial, and no further trial was made"
        outcomes = outcomes.with_pending(not_reached(setup, this_round, change, reason, screened=estimate))
        better.append(Candidate(change_set=change_set, estimate=estimate))
    return progress.with_outcomes(outcomes), _best_first(better, this_round)


def _best_first(better: Sequence[Candidate], this_round: Round) -> list[Candidate]:
    """Order by estimate; of values of one knob that gain about the same, the one expected to gain most is first.

    What limits the job after a change hides what more of it would bring: one loader worker gains as much as two until
    the rest of the step becomes shorter.
    """
    by_estimate = sorted(better, key=lambda candidate: -candidate.estimate)
    best_of: dict[str, float] = {}
    for candidate in by_estimate:
        best_of.setdefault(candidate.change_set.changes[-1].knob.name, candidate.estimate)

    def rank(candidate: Candidate) -> tuple[float, float]:
        change = candidate.change_set.changes[-1]
        best = best_of[change.knob.name]
        if candidate.estimate * ALIKE < best:
            return -candidate.estimate, 0.0
        promise = this_round.promises.get(change.name)
        return -best, 0.0 if promise is None else -promise.expected_speedup

    return sorted(by_estimate, key=rank)


def _screen_together(
    setup: Setup, progress: Progress, this_round: Round, better: Sequence[Candidate]
) -> tuple[Progress, Candidate | None]:
    """Run one trial of the better changes that fit together; None if they are fewer than two, or do not pass."""
    clear = clear_speedup(progress)
    clear_ones = [candidate for candidate in better if candidate.estimate >= clear]
    together = _together(progress, this_round, [one.change_set.changes[-1] for one in clear_ones or better])
    if together is None:
        return progress, None
    added = progress.applied.added(together)
    earlier = progress.evidence.of(together)  # as a bundle
    if earlier:
        result = earlier[-1]
    else:
        progress, result = _try_set(setup, progress, this_round, together)
    progress, refused = refusal_beyond_noise(setup, progress, result, together, place=this_round.place)
    if refused is not None:
        setup.say(f"{together.name}: {refused.outcome}: {refused.reason}")
        tried = tried_set(setup, this_round, added, refused.outcome, refused.reason)
        return progress.with_outcomes(progress.outcomes.with_tried(tried)), None
    progress = _with_baseline_of_this_session(setup, progress, this_round, result)
    estimate = estimated_speedup(progress, together)
    if estimate is None:
        return progress, None
    not_shown = frozenset() if clear_ones else frozenset(change.name for change in added)
    return progress, Candidate(change_set=together, estimate=estimate, not_shown=not_shown)


def _together(progress: Progress, this_round: Round, better: Sequence[Change]) -> ChangeSet | None:
    """Combine the better changes that fit together, best first; None if only the best one is left.

    Only the best of those that set the loader's workers is taken: our own change would undo the script's argument.
    """
    other_workers = _with_other_workers(progress)

    def sets_workers(change: Change) -> bool:
        return change.name in other_workers or change.knob.name == WORKERS.name

    combined: list[Change] = []
    for change in better:
        if sets_workers(change) and any(map(sets_workers, combined)):
            continue
        if progress.applied.with_added([*combined, change], this_round.facts) is not None:
            combined.append(change)
    return progress.applied.with_added(combined, this_round.facts) if len(combined) > 1 else None


def _with_other_workers(progress: Progress) -> Collection[str]:
    """Return the names of changes to the script's arguments that changed the number of its loader's workers."""
    usual = {result.loader_workers for result in progress.current_trials} | {None}
    return {
        change.name
        for trial in progress.evidence.trials
        if trial.result.loader_workers not in usual
        for change in progress.applied.added(trial.changes)
        if change.argument is not None
    }


def _with_fresh_baseline(setup: Setup, progress: Progress, this_round: Round) -> Progress:
    """Run a trial with the applied changes, unless it would follow one.

    Speed drifts, so candidates are screened against trials of now. Peak memory does not drift.
    """
    applied = progress.applied.changes
    is_known = progress.objective == "peak_memory_bytes" and progress.current_trials
    if is_known or progress.evidence.ends_with(applied):
        return progress
    return _try_set(setup, progress, this_round, applied)[0]


def _with_baseline_of_this_session(setup: Setup, progress: Progress, this_round: Round, last: TrialResult) -> Progress:
    """Run trials with the applied changes until one is of the same session as the last trial.

    The machine's speed changes between sessions. The journal may first return more baselines of an earlier session, if
    that session had other candidates in that round.
    """
    if progress.objective == "peak_memory_bytes":
        return progress
    while max((trial.session for trial in progress.current_trials), default=last.session) < last.session:
        progress, _ = _try_set(setup, progress, this_round, progress.applied.changes)
    return progress


def estimated_speedup(progress: Progress, change_set: ChangeSet) -> float | None:
    """Return the speedup of a set relative to the trials of the applied changes around it: an estimate, not a claim.

    None if the objective is unknown of either: a complete trial may lack the energy of the GPUs.
    """
    return _estimated_speedups(progress, [change_set]).get(change_set.name)


def _estimated_speedups(progress: Progress, sets: Sequence[ChangeSet]) -> dict[str, float]:
    """Return the estimates of several sets by name, without those that have none."""
    applied = progress.applied.changes
    trials = [
        msgspec.structs.replace(trial, arm=BASELINE if trial.arm == applied.name else trial.arm)
        for trial in progress.evidence.named(applied, *sets)
        if trial.arm != BASELINE or not applied.changes
    ]
    usable = {trial.arm for trial in trials if missing(trial, progress.objective) is None}
    if BASELINE not in usable:
        return {}
    estimates = {screened.arm: screened.speedup for screened in screen(trials, objective=progress.objective)}
    names = {change_set.name for change_set in sets}
    return {name: speedup for name, speedup in estimates.items() if name in names}


def _outdone_by(change: Change, progress: Progress, this_round: Round, sets: Sequence[ChangeSet]) -> float | None:
    """Return the speedup of another knob for the same cause, less its noise, if it is above the estimate for `change`.

    None if no other knob has shown so much.
    """
    # Changes for a part of the step, such as compute, each take a share of it: their gains multiply.
    causes = change.knob.answers.keys() & set(change.predicted_from)
    rivals = [
        change_set
        for change_set in sets
        if change_set.changes[-1].knob.name != change.knob.name
        and not causes.isdisjoint(change_set.changes[-1].predicted_from)
    ]
    if not rivals:
        return None
    estimates = _estimated_speedups(progress, rivals)
    noise_factor = CLEAR_IF_UNKNOWN
    if progress.trial_sd is not None:
        noise_factor = math.exp(2 * math.sqrt(2) * progress.trial_sd)
    for change_set in rivals:
        rival, estimate = change_set.changes[-1], estimates.get(change_set.name)
        if estimate is None:
            continue
        shown = estimate / noise_factor
        if shown > max(_possible(change, this_round, rival), 1.0):
            return shown
    return None


def _is_outstanding(
    progress: Progress, this_round: Round, sets: Sequence[ChangeSet], untried: Sequence[Change]
) -> bool:
    """Whether a change gains so much in its trial that it is confirmed before the untried ones have theirs.

    None of them is expected to gain as much. A change of the user has no estimate, so it has its trial first. Only the
    first changes that are adopted are claimed at once; for later ones, the order makes no difference.
    """
    if progress.applied or not untried or not sets:
        return False
    estimates = _estimated_speedups(progress, sets)
    best = max(sets, key=lambda change_set: estimates.get(change_set.name, 0.0))
    shown, rival = estimates.get(best.name, 0.0), best.changes[-1]
    is_plain = shown >= max(OUTSTANDING, clear_speedup(progress))
    return is_plain and all(shown >= _possible(change, this_round, rival) for change in untried)


def _possible(change: Change, this_round: Round, rival: Change) -> float:
    """Return the speedup that a change may still bring if its rival is adopted first; infinite without an estimate.

    If the two cannot be applied together, it has no trial in a later round: there its highest possible speedup counts.
    """
    promise = this_round.promises.get(change.name)
    if promise is None:
        return math.inf
    is_either_or = rival.knob.name in change.knob.excludes or change.knob.name in rival.knob.excludes
    return promise.max_speedup if is_either_or else promise.expected_speedup


def _deferring(setup: Setup, progress: Progress, this_round: Round, untried: Sequence[Change]) -> Progress:
    for change in untried:
        reason = "it was deferred to the next round: another change had gained far more than this one is expected to"
        progress = _pending(setup, progress, this_round, change, reason)
        progress = progress.with_outcomes(progress.outcomes.deferring(change.name))
    return progress


def _kept_for_history(
    outcomes: Outcomes, progress: Progress, this_round: Round, change: Change, estimate: float
) -> Outcomes:
    """Keep a screened change for comparison with its prediction; the good ones alone would be biased upwards."""
    prediction, noise = this_round.predictions.get(change.name), progress.noise
    if prediction is None or noise is None:
        return outcomes
    screened = Screened(prediction=prediction, speedup=estimate, sd=noise.pair_sd(progress.usual_steps))
    return msgspec.structs.replace(outcomes, screened=(*outcomes.screened, screened))


def clear_speedup(progress: Progress) -> float:
    """Return the smallest speedup estimate from one trial that is better than noise."""
    noise = progress.noise
    if noise is None:
        return CLEAR_IF_UNKNOWN
    # A candidate's trial is compared with one baseline or the mean of two: it is at most as uncertain as a pair.
    quantile = t_quantile(NOISE_LEVEL, noise.degrees_of_freedom)
    return max(math.exp(quantile * noise.pair_sd(progress.usual_steps)), MIN_SCREENED)


def _pending(setup: Setup, progress: Progress, this_round: Round, change: Change, reason: str) -> Progress:
    return progress.with_outcomes(progress.outcomes.with_pending(not_reached(setup, this_round, change, reason)))


def _listed(changes: Sequence[Change]) -> str:
    return ", ".join(change.name for change in changes)
