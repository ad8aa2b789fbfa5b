"""Screening: one trial per candidate between fresh baselines. It selects candidates to confirm, and claims nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from flatout.change.dataloader import WORKERS
from flatout.errors import UsageError
from flatout.records.change import Change, ChangeSet, JobFacts
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.tuning import Screened
from flatout.records.verdict import NoiseFloor
from flatout.tune.budget import CANDIDATES_BETWEEN_BASELINES
from flatout.tune.result import record_pending, record_tried
from flatout.tune.state import TuningState
from flatout.tune.trials import fresh_baseline, is_fit, trial
from flatout.verdict.cost import missing
from flatout.verdict.noise import noise_floor
from flatout.verdict.screening import screen
from flatout.verdict.student import t_quantile

MIN_SCREENED = 1.02  # a smaller speedup in one trial is not worth confirming
NOISE_LEVEL = 0.025  # the chance that a change without effect looks better than noise in its own trial


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes to confirm."""

    change_set: ChangeSet
    estimate: float  # speedup, from one trial
    not_shown: frozenset[str] = frozenset()  # names of its changes that looked no better than noise in their own trials


def screen_candidates(state: TuningState, chosen: Sequence[Change], facts: JobFacts) -> list[Candidate]:
    """Run one trial of each change, with baselines between them, and one trial of the better changes together.

    Return the sets that look better, best first. Only changes that are better than noise in their own trials are tried
    together: any other change could be adopted with them without a gain, and has its trial in the next round. If none
    is better than noise, all are tried together.
    """
    state.say(f"round {state.round}: screening {', '.join(change.name for change in chosen)}")
    for change in chosen:
        record_pending(state, change, "it was not tried")
    trials = [fresh_baseline(state)]
    sets: dict[str, ChangeSet] = {}
    num_tried = 0
    for change in chosen:
        change_set = state.with_added([change], facts)
        if change_set is None:
            record_pending(state, change, "it cannot be combined with the applied changes")
            continue
        if (shown := _outdone_by(change, state, sets, trials)) is not None:
            state.deferred.add(change.name)
            reason = f"another change for the same cause had already gained {shown:.2f}x or more"
            record_pending(state, change, f"it was deferred to the next round: {reason}")
            continue
        num_tried += 1
        state.deferred.discard(change.name)
        result = trial(state, change_set)
        record_pending(state, change, "it was tried, but no baseline trial followed it for comparison")
        if is_fit(state, result, change_set, [change]):
            trials.append(result)
            sets[change_set.name] = change_set
        if num_tried % CANDIDATES_BETWEEN_BASELINES == 0:
            trials.append(fresh_baseline(state))
    _add_baselines_of_this_session(state, trials)
    if not sets or not _has_baseline(state, trials):
        return []
    estimates = {screened.arm: screened.speedup for screened in screen(trials, objective=state.objective)}
    _keep_for_history(state, sets.values(), estimates)
    better = [
        Candidate(change_set=change_set, estimate=estimates[name])
        for name, change_set in sets.items()
        if estimates[name] >= MIN_SCREENED
    ]
    better.sort(key=lambda candidate: -candidate.estimate)
    for change_set in sets.values():
        estimate = estimates[change_set.name]
        for change in state.added(change_set):
            record_pending(state, change, f"{estimate:.2f}x in its own trial; no pairs were run", screened=estimate)
        if estimate < MIN_SCREENED:
            record_tried(state, change_set, "not better", f"{estimate:.2f}x in its own trial", screened=estimate)
            state.excluded.add(change_set.changes[-1].name)
    clear_speedup = smallest_clear_speedup(state)
    clear = [candidate for candidate in better if candidate.estimate >= clear_speedup]
    other_workers = _with_other_workers(trials, sets)
    to_combine = [candidate.change_set.changes[-1] for candidate in clear or better]
    together = _together(state, to_combine, facts, other_workers)
    if together is not None:
        result = trial(state, together)
        if is_fit(state, result, together, state.added(together)):
            trials += [result, fresh_baseline(state)]
            _add_baselines_of_this_session(state, trials)
            speedup = next(s.speedup for s in screen(trials, objective=state.objective) if s.arm == together.name)
            not_shown = frozenset() if clear else frozenset(change.name for change in state.added(together))
            better.append(Candidate(change_set=together, estimate=speedup, not_shown=not_shown))
            better.sort(key=lambda candidate: -candidate.estimate)
    return better


def _has_baseline(state: TuningState, trials: Sequence[TrialResult]) -> bool:
    """Whether a baseline has what the objective needs: a complete one may lack the energy of the GPUs."""
    return any(result.arm == BASELINE and missing(result, state.objective) is None for result in trials)


def _add_baselines_of_this_session(state: TuningState, trials: list[TrialResult]) -> None:
    """Add baselines until one is of the same session as the last trial, because the machine's speed changes.

    The journal may first return more baselines of an earlier session, if that session had other candidates in that
    round.
    """
    if state.objective == "peak_memory_bytes":
        return
    last_session = max(result.session for result in trials)
    while max(result.session for result in trials if result.arm == BASELINE) < last_session:
        trials.append(fresh_baseline(state))


def _outdone_by(
    change: Change, state: TuningState, sets: Mapping[str, ChangeSet], trials: Sequence[TrialResult]
) -> float | None:
    """Return the speedup beyond noise of another knob for the same cause, if it is above the estimate for `change`.

    None if no other knob has shown so much. If the two cannot be applied together, `change` has no trial in a later
    round: there its highest possible speedup counts.
    """

    def shares_a_cause(other: Change) -> bool:
        return other.knob.name != change.knob.name and not causes.isdisjoint(other.predicted_from)

    # Changes for a part of the step, such as compute, each take a share of it: their gains multiply.
    causes = change.knob.answers.keys() & set(change.predicted_from)
    rivals = {
        name: change_set.changes[-1] for name, change_set in sets.items() if shares_a_cause(change_set.changes[-1])
    }
    if not rivals or change.name not in state.expected_speedup or not _has_baseline(state, trials):
        return None
    clear_speedup = smallest_clear_speedup(state)
    for screened in screen(trials, objective=state.objective):
        rival = rivals.get(screened.arm)
        if rival is None:
            continue
        is_either_or = rival.knob.name in change.knob.excludes or change.knob.name in rival.knob.excludes
        possible = (state.max_speedup if is_either_or else state.expected_speedup)[change.name]
        if screened.speedup / clear_speedup > max(possible, 1.0):
            return screened.speedup / clear_speedup
    return None


def _keep_for_history(state: TuningState, sets: Iterable[ChangeSet], estimates: Mapping[str, float]) -> None:
    """Keep all screened changes for comparison with predictions, because the good ones alone are biased upwards."""
    sd = _noise(state).pair_sd(state.num_steps)
    for change_set in sets:
        prediction = state.predictions.get(change_set.changes[-1].name)
        if prediction is not None:
            state.screened.append(Screened(prediction=prediction, speedup=estimates[change_set.name], sd=sd))


def _noise(state: TuningState) -> NoiseFloor:
    """Return the noise floor of all trials with the applied changes."""
    try:
        return noise_floor(state.current_trials, objective=state.objective)
    except UsageError:  # fewer than three trials
        assert state.floor is not None
        return state.floor


def smallest_clear_speedup(state: TuningState) -> float:
    """Return the smallest speedup estimate from one trial that is better than noise."""
    noise = _noise(state)
    # A candidate's trial is compared with one baseline or the mean of two: it is at most as uncertain as a pair.
    quantile = t_quantile(NOISE_LEVEL, noise.degrees_of_freedom)
    return max(math.exp(quantile * noise.pair_sd(state.num_steps)), MIN_SCREENED)


def _with_other_workers(trials: Sequence[TrialResult], sets: Mapping[str, ChangeSet]) -> set[str]:
    """Return the names of changes to the script's arguments that changed the number of its loader's workers."""
    usual = {result.loader_workers for result in trials if result.arm == BASELINE} | {None}
    others = [
        sets[result.arm].changes[-1] for result in trials if result.arm in sets and result.loader_workers not in usual
    ]
    return {change.name for change in others if change.argument is not None}


def _together(
    state: TuningState, better: Sequence[Change], facts: JobFacts, other_workers: Collection[str]
) -> ChangeSet | None:
    """Combine the better changes that fit together, best first; None if only the best one is left.

    Only the best of those that set the loader's workers is taken: our own change would undo the script's argument.
    """

    def sets_workers(change: Change) -> bool:
        return change.name in other_workers or change.knob.name == WORKERS.name

    combined: list[Change] = []
    for change in better:
        if sets_workers(change) and any(map(sets_workers, combined)):
            continue
        if state.with_added([*combined, change], facts) is not None:
            combined.append(change)
    return state.with_added(combined, facts) if len(combined) > 1 else None
