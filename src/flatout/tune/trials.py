"""Trials within the budget: one at a time, or in pairs until there is a verdict; and whether one passes the gates."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flatout.records.change import Change, ChangeSet
from flatout.records.trial import BASELINE, Pair, TrialResult
from flatout.records.tuning import TriedOutcome
from flatout.records.verdict import Verdict
from flatout.trial.gates import GateResult, check_losses, check_memory
from flatout.trial.gradient_gate import check_gradients
from flatout.tune.budget import OutOfBudgetError, check, check_final
from flatout.tune.result import note
from flatout.tune.state import TuningState
from flatout.verdict.cost import missing
from flatout.verdict.judge import is_worth_more_pairs, judge

MAX_FAILED_PAIRS = 2
MAX_VOID_PAIRS = 4  # and more than those that count: something is wrong that more pairs do not mend


def trial(state: TuningState, changes: ChangeSet) -> TrialResult:
    """One trial. Raises OutOfBudgetError."""
    check(state)
    return state.runner.trial(changes, state.num_steps, f"round {state.round}")


def fresh_baseline(state: TuningState) -> TrialResult:
    """A trial of what is on now, to screen beside what is tried on top.

    Speed drifts; peak memory does not, and there the last trial of what is on will do.
    """
    if state.objective == "peak_memory_bytes" and state.current_trials:
        return msgspec.structs.replace(state.current_trials[-1], arm=BASELINE)
    made = trial(state, state.applied_set())
    _keep_baseline(state, made)
    return msgspec.structs.replace(made, arm=BASELINE)


def run_pairs(
    state: TuningState, candidate: ChangeSet, against: ChangeSet, *, is_final: bool = False
) -> tuple[Verdict, GateResult, bool]:
    """Pairs in the order AB BA ..., until the verdict is final or hopeless; True: cut short."""
    fresh_after = state.runner.num_trials - 1
    pairs: list[Pair] = []
    state.last_pairs = pairs
    gate = GateResult(is_passed=True, reason="")
    is_last = is_cut = False
    while True:
        verdict = judge(
            pairs,
            objective=state.objective,
            floor=state.floor,
            min_effect=state.options.min_effect,
            fresh_after=fresh_after,
            is_last=is_last,
        )
        if is_last or verdict.next_look is None or (pairs and not is_worth_more_pairs(verdict)):
            return verdict, gate, is_cut
        try:
            # Of a tuning that goes on with a larger budget, other stages may need more trials than before: they must
            # not take a trial out of a pair.
            place = f"{'final ' if is_final else ''}pair of {candidate.name} and {against.name}"
            order = (against, candidate) if len(pairs) % 2 == 0 else (candidate, against)
            first, second = (_pair_trial(state, changes, place, is_final) for changes in order)
        except OutOfBudgetError as out_of_budget:
            state.cut_by = out_of_budget.end
            is_last = is_cut = True
            continue
        baseline, tried = (first, second) if order[0] is against else (second, first)
        _keep_baseline(state, baseline)
        pairs.append(Pair(baseline=msgspec.structs.replace(baseline, arm=BASELINE), candidate=tried))
        gate = check_gates(state, tried, candidate)
        is_failing = sum(not pair.candidate.is_complete for pair in pairs) > MAX_FAILED_PAIRS
        is_void = len(pairs) - verdict.num_pairs > MAX_VOID_PAIRS and verdict.num_void > verdict.num_pairs
        if not gate.is_passed or is_failing or is_void:
            is_last = True


def _pair_trial(state: TuningState, changes: ChangeSet, place: str, is_final: bool) -> TrialResult:
    if is_final:
        check_final(state)
    else:
        check(state)
    return state.runner.trial(changes, state.num_steps, place)


def _keep_baseline(state: TuningState, made: TrialResult) -> None:
    """Baselines of pairs and of screening serve the gates and the means, too."""
    if not made.is_complete:
        return
    if made.arm == BASELINE:
        state.baselines.append(made)
    if made.arm == state.applied_set().name:
        state.current_trials.append(made)


def is_fit(state: TuningState, made: TrialResult, changes: ChangeSet, added: Sequence[Change]) -> bool:
    """Whether a screened trial may go on; what it failed by is noted."""
    outcome: TriedOutcome | None = None
    reason = made.problem
    if made.outcome == "out_of_memory":
        outcome = "out of memory"
    elif not made.is_complete:
        outcome = "not applied" if made.cause == "not_applied" else "failed"
    elif (absent := missing(made, state.objective) or _other_work(state, made)) is not None:
        outcome, reason = "failed", absent
    else:
        gate = check_gates(state, made, changes)
        if not gate.is_passed:
            outcome, reason = "unsafe", gate.reason
    if outcome is None:
        return True
    note(state, changes, outcome, reason)
    state.say(f"{changes.name}: {outcome}: {reason}")
    state.excluded.update(change.name for change in added)
    return False


def _other_work(state: TuningState, made: TrialResult) -> str | None:
    """By steps/s, a step of fewer samples would win; None: it has as many, or they are not known."""
    before, after = state.baselines[0].samples_per_step, made.samples_per_step
    if state.objective != "step_s" or not before or not after or abs(after / before - 1) < 0.01:
        return None
    return f"its step has {after:.4g} samples, and the job's {before:.4g}: steps/s does not compare them"


def check_gates(state: TuningState, made: TrialResult, changes: ChangeSet) -> GateResult:
    """Against the job as it came, and what is added also against what is on now.

    What is on may have made the first of them lenient: other workers draw other samples, bf16 rounds. What an exact
    change adds to that must be exact all the same.
    """
    if not made.is_complete:
        return GateResult(is_passed=True, reason=made.problem)
    if made.wrong_data is not None:
        return GateResult(is_passed=False, reason=made.wrong_data)
    losses = check_losses(made, state.baselines, changes)
    for gate in (losses, check_gradients(made, state.baselines, changes)):
        if not gate.is_passed:
            return gate
    added = state.added(changes)
    if state.applied and added:
        alone, now = ChangeSet(changes=added), state.current_trials
        for gate in (check_losses(made, now, alone), check_gradients(made, now, alone, others=state.baselines)):
            if not gate.is_passed:
                return msgspec.structs.replace(gate, reason=f"against what was on before it: {gate.reason}")
    memory = check_memory(made, state.baselines)
    return memory if not memory.is_passed else losses
