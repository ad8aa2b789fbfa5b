"""Confirmation of the best on fresh pairs, and the final verdict of all that was adopted."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.change import Change
from flatout.records.tuning import TunedChange
from flatout.records.verdict import Verdict
from flatout.tune.budget import OutOfBudgetError
from flatout.tune.result import note
from flatout.tune.screening import Candidate, least_shown
from flatout.tune.state import NOTHING, TuningState
from flatout.tune.trials import run_pairs


def confirm(state: TuningState, screened: Sequence[Candidate]) -> bool:
    """The best on fresh pairs against what is on now; the next best where it does not hold."""
    for candidate in screened[:2]:
        made, estimate = candidate.made, candidate.estimate
        added = state.added(made)
        state.say(f"round {state.round}: confirming {' + '.join(change.name for change in added)} ({estimate:.2f}x)")
        state.num_confirmations += 1
        verdict, gate, is_cut = run_pairs(state, made, state.applied_set())
        if not gate.is_passed:
            note(state, made, "unsafe", gate.reason, screened=estimate, verdict=verdict)
            state.excluded.update(change.name for change in added)
        elif verdict.verdict == "better":
            note(state, made, "adopted", gate.reason, screened=estimate, verdict=verdict)
            if not state.needs_final_pairs:
                state.against_original = verdict
            alone = verdict if len(added) == 1 else None
            _refuse_outdone(state, added, screened)
            turned = {change.knob.name for change in added}
            state.confirmed = [one for one in state.confirmed if one.change.knob.name not in turned]
            state.confirmed += [
                TunedChange(
                    change=change,
                    verdict=alone,
                    prediction=state.predictions.get(change.name),
                    is_shown_alone=change.name not in candidate.not_shown,
                )
                for change in added
            ]
            state.applied = list(made.changes)
            state.current_trials = [pair.candidate for pair in state.last_pairs if pair.candidate.is_complete]
            return True
        elif state.last_pairs or not is_cut:
            note(state, made, "not confirmed", verdict.reason, screened=estimate, verdict=verdict)
            if len(added) == 1:
                state.excluded.add(added[0].name)
        if is_cut:
            assert state.cut_by is not None
            raise OutOfBudgetError(msgspec.structs.replace(state.cut_by, interrupts="confirmation"))
    return False


def _refuse_outdone(state: TuningState, adopted: Sequence[Change], screened: Sequence[Candidate]) -> None:
    """Other values of knobs that are adopted are not tried again: what was on, and what looked clearly worse.

    What looked about as good has another turn, beside what is on then: one trial does not tell which is better.
    """
    knobs = {change.knob.name for change in adopted}
    state.excluded |= {change.name for change in state.applied if change.knob.name in knobs}
    alone = {added[0].name: one for one in screened if len(added := state.added(one.made)) == 1}
    least = least_shown(state)
    for change in adopted:
        best = alone.get(change.name)
        for name, other in alone.items():
            is_other_value = name != change.name and other.made.changes[-1].knob.name == change.knob.name
            if best is not None and is_other_value and other.estimate * least < best.estimate:
                reason = f"{other.estimate:.2f}x in a trial of its own, {change.name} {best.estimate:.2f}x"
                note(state, other.made, "not better", reason, screened=other.estimate)
                state.excluded.add(name)


def final_verdict(state: TuningState) -> Verdict | None:
    """All that was adopted against the job as it came, on pairs that chose nothing."""
    is_only = sum(one.outcome == "adopted" for one in state.tried) == 1
    if is_only and state.against_original is not None:
        return state.against_original
    state.say(f"final: {state.applied_set().name} against the job as it came")
    verdict, gate, _ = run_pairs(state, state.applied_set(), NOTHING, is_final=True)
    made = [pair.candidate for pair in state.last_pairs if pair.candidate.is_complete]
    state.current_trials = made or state.current_trials
    if not gate.is_passed:
        state.notes.append(f"the final set failed a gate: {gate.reason}")
        state.applied, state.confirmed = [], []
        return None
    return verdict
