"""Screening: a trial of each candidate beside fresh baselines. It chooses whom to confirm, and claims nothing."""

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
from flatout.tune.result import note, note_open
from flatout.tune.state import TuningState
from flatout.tune.trials import fresh_baseline, is_fit, trial
from flatout.verdict.cost import missing
from flatout.verdict.noise import noise_floor
from flatout.verdict.screening import screen
from flatout.verdict.student import t_quantile

MIN_SCREENED = 1.02  # less than that, in one trial, is not worth confirming
NOISE_LEVEL = 0.025  # the chance that a change without effect looks better than noise in its own trial


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """To be confirmed."""

    made: ChangeSet
    estimate: float  # speedup, from one trial
    not_shown: frozenset[str] = frozenset()  # names of changes in it that looked no better than noise by themselves


def screen_candidates(state: TuningState, chosen: Sequence[Change], facts: JobFacts) -> list[Candidate]:
    """A trial each, with baselines between them; those that look better, best first, and all of them together.

    Together are only those that are better than noise by themselves: another one could ride along with them and bring
    nothing. It has its turn in the next round. Only where none is better than noise, all are tried together.
    """
    state.say(f"round {state.round}: screening {', '.join(change.name for change in chosen)}")
    for change in chosen:
        note_open(state, change, "no trial was made of it")
    trials = [fresh_baseline(state)]
    sets: dict[str, ChangeSet] = {}
    num_tried = 0
    for change in chosen:
        made = state.with_added([change], facts)
        if made is None:
            note_open(state, change, "it does not go together with what is on")
            continue
        if (shown := _outdone_by(change, state, sets, trials)) is not None:
            state.deferred.add(change.name)
            reason = f"another change for the same cause had shown {shown:.2f}x or more"
            note_open(state, change, f"it waited for a next round: {reason}")
            continue
        num_tried += 1
        state.deferred.discard(change.name)
        tried = trial(state, made)
        note_open(state, change, "a trial was made of it, and no baseline after it to hold it against")
        if is_fit(state, tried, made, [change]):
            trials.append(tried)
            sets[made.name] = made
        if num_tried % CANDIDATES_BETWEEN_BASELINES == 0:
            trials.append(fresh_baseline(state))
    _add_baselines_of_now(state, trials)
    if not sets or not _has_baseline(state, trials):
        return []
    estimates = {one.arm: one.speedup for one in screen(trials, objective=state.objective)}
    _keep(state, sets.values(), estimates)
    good = [
        Candidate(made=made, estimate=estimates[name]) for name, made in sets.items() if estimates[name] >= MIN_SCREENED
    ]
    good.sort(key=lambda one: -one.estimate)
    for made in sets.values():
        estimate = estimates[made.name]
        for change in state.added(made):
            note_open(state, change, f"{estimate:.2f}x in a trial of its own; no pairs were run", screened=estimate)
        if estimate < MIN_SCREENED:
            note(state, made, "not better", f"{estimate:.2f}x in a trial of its own", screened=estimate)
            state.excluded.add(made.changes[-1].name)
    least = least_shown(state)
    clear = [one for one in good if one.estimate >= least]
    other_workers = _with_other_workers(trials, sets)
    together = _together(state, [one.made.changes[-1] for one in clear or good], facts, other_workers)
    if together is not None:
        tried = trial(state, together)
        if is_fit(state, tried, together, state.added(together)):
            trials += [tried, fresh_baseline(state)]
            _add_baselines_of_now(state, trials)
            speedup = next(s.speedup for s in screen(trials, objective=state.objective) if s.arm == together.name)
            not_shown = frozenset() if clear else frozenset(change.name for change in state.added(together))
            good.append(Candidate(made=together, estimate=speedup, not_shown=not_shown))
            good.sort(key=lambda one: -one.estimate)
    return good


def _has_baseline(state: TuningState, trials: Sequence[TrialResult]) -> bool:
    """With what the objective needs, as a complete one may lack the GPUs' energy."""
    return any(one.arm == BASELINE and missing(one, state.objective) is None for one in trials)


def _add_baselines_of_now(state: TuningState, trials: list[TrialResult]) -> None:
    """Where what was tried last is of a later session than all baselines, which are of a machine as it was then.

    The journal may first give back some more of before, where it had other candidates in that round.
    """
    if state.objective == "peak_memory_bytes":
        return
    while max(one.session for one in trials if one.arm == BASELINE) < max(one.session for one in trials):
        trials.append(fresh_baseline(state))


def _outdone_by(
    change: Change, state: TuningState, sets: Mapping[str, ChangeSet], trials: Sequence[TrialResult]
) -> float | None:
    """The speedup beyond noise that another knob for the same cause has shown in its trial, where that is more than
    `change` promises; None where none has.

    What cannot be on beside the other has no next turn: there the most counts that it may bring.
    """

    def shares(other: Change) -> bool:
        return other.knob.name != change.knob.name and not causes.isdisjoint(other.predicted_from)

    # Of a part of the step, as compute, each takes its share: their gains multiply.
    causes = change.knob.answers.keys() & set(change.predicted_from)
    rivals = {name: made.changes[-1] for name, made in sets.items() if shares(made.changes[-1])}
    if not rivals or change.name not in state.promises or not _has_baseline(state, trials):
        return None
    least = least_shown(state)
    for one in screen(trials, objective=state.objective):
        other = rivals.get(one.arm)
        if other is None:
            continue
        is_either_or = other.knob.name in change.knob.excludes or change.knob.name in other.knob.excludes
        promised = (state.max_speedup if is_either_or else state.promises)[change.name]
        if one.speedup / least > max(promised, 1.0):
            return one.speedup / least
    return None


def _keep(state: TuningState, sets: Iterable[ChangeSet], estimates: Mapping[str, float]) -> None:
    """What their predictions can learn: from all of them, as those that look good are too good on average."""
    sd = _noise(state).pair_sd(state.num_steps)
    for made in sets:
        prediction = state.predictions.get(made.changes[-1].name)
        if prediction is not None:
            state.screened.append(Screened(prediction=prediction, speedup=estimates[made.name], sd=sd))


def _noise(state: TuningState) -> NoiseFloor:
    """By trials of what is on now, all there are."""
    try:
        return noise_floor(state.current_trials, objective=state.objective)
    except UsageError:  # fewer than three
        assert state.floor is not None
        return state.floor


def least_shown(state: TuningState) -> float:
    """The least estimate of one trial that is better than noise."""
    noise = _noise(state)
    # A candidate's trial against one baseline, or the mean of two: at most as uncertain as a pair.
    quantile = t_quantile(NOISE_LEVEL, noise.degrees_of_freedom)
    return max(math.exp(quantile * noise.pair_sd(state.num_steps)), MIN_SCREENED)


def _with_other_workers(trials: Sequence[TrialResult], sets: Mapping[str, ChangeSet]) -> set[str]:
    """Arguments of the script that gave its loader other workers, by the names of their changes."""
    usual = {one.loader_workers for one in trials if one.arm == BASELINE} | {None}
    found = [sets[one.arm].changes[-1] for one in trials if one.arm in sets and one.loader_workers not in usual]
    return {change.name for change in found if change.argument is not None}


def _together(
    state: TuningState, good: Sequence[Change], facts: JobFacts, other_workers: Collection[str]
) -> ChangeSet | None:
    """All good ones that fit together, best first; None where that is no more than the best alone.

    Of those that set the loader's workers only the best: our own change would undo what the script's argument did.
    """
    chosen: list[Change] = []
    for change in good:
        sets_workers = change.name in other_workers or change.knob.name == WORKERS.name
        if sets_workers and any(one.name in other_workers or one.knob.name == WORKERS.name for one in chosen):
            continue
        if state.with_added([*chosen, change], facts) is not None:
            chosen.append(change)
    return state.with_added(chosen, facts) if len(chosen) > 1 else None
