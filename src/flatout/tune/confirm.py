"""Confirm the best candidate on fresh pairs, and compare all adopted changes with the unchanged job."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.change import Change
from flatout.records.tuning import TriedOutcome, TunedChange
from flatout.records.verdict import Verdict
from flatout.tune.budget import OutOfBudgetError
from flatout.tune.epoch_check import EpochCheck, check_epoch, check_epoch_in_pairs
from flatout.tune.result import record_tried
from flatout.tune.screening import Candidate, smallest_clear_speedup
from flatout.tune.state import NOTHING, TuningState
from flatout.tune.trials import run_pairs


def confirm(state: TuningState, screened: Sequence[Candidate]) -> bool:
    """Adopt the best candidate if fresh pairs confirm it, or else the second best. Raises OutOfBudgetError."""
    for candidate in screened[:2]:
        change_set, estimate = candidate.change_set, candidate.estimate
        added = state.added(change_set)
        state.say(f"round {state.round}: confirming {_names(added)} ({estimate:.2f}x)")
        epoch = check_epoch(state, change_set)
        if epoch is not None and not epoch.is_held:
            _refuse(state, candidate, "not confirmed", epoch.reason, None)
            continue
        state.num_confirmations += 1
        verdict, gate, is_cut = run_pairs(state, change_set, state.applied_set())
        if epoch is not None and not epoch.is_checked and verdict.verdict == "better":
            epoch = check_epoch_in_pairs(state, state.last_pairs) or epoch
        if not gate.is_passed:
            _refuse(state, candidate, "unsafe", gate.reason, verdict)
        elif epoch is not None and not epoch.is_held:
            _refuse(state, candidate, "not confirmed", epoch.reason, verdict)
        elif verdict.verdict == "better":
            _adopt(state, candidate, screened, verdict, gate.reason, epoch)
            return True
        elif state.last_pairs or not is_cut:
            record_tried(state, change_set, "not confirmed", verdict.reason, screened=estimate, verdict=verdict)
            if len(added) == 1:
                state.excluded.add(added[0].name)
        if is_cut:
            assert state.cut_by is not None
            raise OutOfBudgetError(msgspec.structs.replace(state.cut_by, interrupts="confirmation"))
    return False


def _names(changes: Sequence[Change]) -> str:
    return " + ".join(change.name for change in changes)


def _refuse(
    state: TuningState, candidate: Candidate, outcome: TriedOutcome, reason: str, verdict: Verdict | None
) -> None:
    """Record the candidate as tried, and exclude its changes from all later rounds."""
    record_tried(state, candidate.change_set, outcome, reason, screened=candidate.estimate, verdict=verdict)
    state.excluded.update(change.name for change in state.added(candidate.change_set))


def _adopt(
    state: TuningState,
    candidate: Candidate,
    screened: Sequence[Candidate],
    verdict: Verdict,
    gate_reason: str,
    epoch: EpochCheck | None,
) -> None:
    """Apply the candidate's changes from now on. Its trials in the confirming pairs are those of the applied set."""
    change_set, added = candidate.change_set, state.added(candidate.change_set)
    reason = gate_reason if epoch is None else f"{gate_reason}; {epoch.reason}"
    record_tried(state, change_set, "adopted", reason, screened=candidate.estimate, verdict=verdict)
    if epoch is not None and not epoch.is_checked:
        state.notes.append(f"{_names(added)} was adopted, and {epoch.reason}")
        state.covers_first_epoch_only = True
    if not state.needs_final_pairs:
        state.against_original = verdict
    _exclude_other_values(state, added, screened)
    added_knobs = {change.knob.name for change in added}
    state.confirmed = [tuned for tuned in state.confirmed if tuned.change.knob.name not in added_knobs]
    state.confirmed += [
        TunedChange(
            change=change,
            verdict=verdict if len(added) == 1 else None,
            prediction=state.predictions.get(change.name),
            is_shown_alone=change.name not in candidate.not_shown,
        )
        for change in added
    ]
    state.applied = list(change_set.changes)
    state.current_trials = [pair.candidate for pair in state.last_pairs if pair.candidate.is_complete]


def _exclude_other_values(state: TuningState, adopted: Sequence[Change], screened: Sequence[Candidate]) -> None:
    """Exclude other values of the adopted knobs: the one applied before, and those that were clearly worse.

    A value that was about as good is tried again later, relative to the changes applied then: one trial cannot decide
    which is better.
    """
    adopted_knobs = {change.knob.name for change in adopted}
    state.excluded |= {change.name for change in state.applied if change.knob.name in adopted_knobs}
    screened_alone = {
        added[0].name: candidate for candidate in screened if len(added := state.added(candidate.change_set)) == 1
    }
    clear_speedup = smallest_clear_speedup(state)
    for change in adopted:
        best = screened_alone.get(change.name)
        for name, other in screened_alone.items():
            is_other_value = name != change.name and other.change_set.changes[-1].knob.name == change.knob.name
            if best is not None and is_other_value and other.estimate * clear_speedup < best.estimate:
                reason = f"{other.estimate:.2f}x in its own trial, {change.name} {best.estimate:.2f}x"
                record_tried(state, other.change_set, "not better", reason, screened=other.estimate)
                state.excluded.add(name)


def final_verdict(state: TuningState) -> Verdict | None:
    """Compare all adopted changes with the unchanged job, on pairs that were not used to choose anything."""
    is_only = sum(tried.outcome == "adopted" for tried in state.tried) == 1
    if is_only and state.against_original is not None:
        return state.against_original
    state.say(f"final: comparing {state.applied_set().name} with the unchanged job")
    verdict, gate, _ = run_pairs(state, state.applied_set(), NOTHING, is_final=True)
    completed = [pair.candidate for pair in state.last_pairs if pair.candidate.is_complete]
    state.current_trials = completed or state.current_trials
    if not gate.is_passed:
        state.notes.append(f"the final set failed a gate: {gate.reason}")
        state.applied, state.confirmed = [], []
        return None
    return verdict
