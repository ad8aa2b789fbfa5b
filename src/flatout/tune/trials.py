"""Run trials within the budget, one at a time or in pairs until there is a verdict, and check them by the gates."""

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
from flatout.tune.result import record_tried
from flatout.tune.state import TuningState
from flatout.verdict.cost import missing
from flatout.verdict.judge import is_worth_more_pairs, judge

MAX_FAILED_PAIRS = 2
MAX_INVALID_PAIRS = 4  # and more than the valid pairs: more pairs would not fix the cause


def trial(state: TuningState, changes: ChangeSet) -> TrialResult:
    """Run one trial. Raises OutOfBudgetError."""
    check(state)
    return state.runner.trial(changes, state.num_steps, f"round {state.round}")


def fresh_baseline(state: TuningState) -> TrialResult:
    """Return a trial with the applied changes, to screen candidates against.

    Speed drifts, so it is run now. Peak memory does not drift: the last such trial is returned.
    """
    if state.objective == "peak_memory_bytes" and state.current_trials:
        return msgspec.structs.replace(state.current_trials[-1], arm=BASELINE)
    result = trial(state, state.applied_set())
    _keep_baseline(state, result)
    return msgspec.structs.replace(result, arm=BASELINE)


def run_pairs(
    state: TuningState, candidate: ChangeSet, against: ChangeSet, *, is_final: bool = False
) -> tuple[Verdict, GateResult, bool]:
    """Run pairs in the order AB BA ... until the verdict is final or hopeless. The flag: a budget ended them early."""
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
        if is_last or verdict.next_analysis is None or (pairs and not is_worth_more_pairs(verdict)):
            return verdict, gate, is_cut
        try:
            # When a tuning is resumed with a larger budget, other stages may need more trials than before: they must
            # not take a trial out of a pair, so the journal keeps a pair's trials under the pair's name.
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
        num_invalid = len(pairs) - verdict.num_pairs
        is_mostly_invalid = num_invalid > MAX_INVALID_PAIRS and verdict.num_void > verdict.num_pairs
        if not gate.is_passed or is_failing or is_mostly_invalid:
            is_last = True


def _pair_trial(state: TuningState, changes: ChangeSet, place: str, is_final: bool) -> TrialResult:
    if is_final:
        check_final(state)
    else:
        check(state)
    return state.runner.trial(changes, state.num_steps, place)


def _keep_baseline(state: TuningState, result: TrialResult) -> None:
    """Keep a baseline of pairs or of screening: the gates and the means use it too."""
    if not result.is_complete:
        return
    if result.arm == BASELINE:
        state.baselines.append(result)
    if result.arm == state.applied_set().name:
        state.current_trials.append(result)


def is_fit(state: TuningState, result: TrialResult, changes: ChangeSet, added: Sequence[Change]) -> bool:
    """Whether a screened trial can be compared; if not, its changes are excluded and the reason is recorded."""
    outcome: TriedOutcome | None = None
    reason = result.problem
    if result.outcome == "out_of_memory":
        outcome = "out of memory"
    elif not result.is_complete:
        outcome = "not applied" if result.cause == "not_applied" else "failed"
    elif (absent := missing(result, state.objective) or _other_work(state, result)) is not None:
        outcome, reason = "failed", absent
    else:
        gate = check_gates(state, result, changes)
        if not gate.is_passed:
            outcome, reason = "unsafe", gate.reason
    if outcome is None:
        return True
    record_tried(state, changes, outcome, reason)
    state.say(f"{changes.name}: {outcome}: {reason}")
    state.excluded.update(change.name for change in added)
    return False


def _other_work(state: TuningState, result: TrialResult) -> str | None:
    """Say that the steps have a different number of samples, so that steps/s would favour the shorter steps.

    Return None if equal.
    """
    before, after = state.baselines[0].samples_per_step, result.samples_per_step
    if state.objective != "step_s" or not before or not after or abs(after / before - 1) < 0.01:
        return None
    return f"its step has {after:.4g} samples, and the job's {before:.4g}: steps/s does not compare them"


def check_gates(state: TuningState, result: TrialResult, changes: ChangeSet) -> GateResult:
    """Check a trial against the unchanged job; check the changes that it adds against the applied changes too.

    The applied changes may have made the first check lenient: different workers draw different samples, and bf16
    rounds. An exact change added to them must still be exact.
    """
    if not result.is_complete:
        return GateResult(is_passed=True, reason=result.problem)
    if result.wrong_data is not None:
        return GateResult(is_passed=False, reason=result.wrong_data)
    losses = check_losses(result, state.baselines, changes)
    for gate in (losses, check_gradients(result, state.baselines, changes)):
        if not gate.is_passed:
            return gate
    added = state.added(changes)
    if state.applied and added:
        alone, current = ChangeSet(changes=added), state.current_trials
        for gate in (
            check_losses(result, current, alone),
            check_gradients(result, current, alone, others=state.baselines),
        ):
            if not gate.is_passed:
                return msgspec.structs.replace(gate, reason=f"compared with the applied changes: {gate.reason}")
    memory = check_memory(result, state.baselines)
    return memory if not memory.is_passed else losses
