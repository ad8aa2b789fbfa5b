"""Run trials within the budget, and check them by the gates."""

from __future__ import annotations

import msgspec

from flatout.records.change import ChangeSet
from flatout.records.trial import TrialResult
from flatout.records.tuning import TriedOutcome, TuningEnd
from flatout.trial.gates import GateResult, check_losses, check_memory
from flatout.trial.gradient_gate import check_gradients
from flatout.tune.budget import used_up
from flatout.tune.progress import Progress, Setup, StoppedError
from flatout.verdict.cost import missing


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a trial cannot be compared with the baseline."""

    outcome: TriedOutcome
    reason: str


def run_trial(
    setup: Setup, progress: Progress, changes: ChangeSet, *, place: str, num_reserved: int = 0
) -> tuple[Progress, TrialResult]:
    """Run one trial, and return what is known with it. Raises StoppedError if the budget does not allow it."""
    end = used_up(setup, progress, num_reserved=num_reserved)
    if end is not None:
        raise StoppedError(progress, end)
    try:
        result = setup.runner.trial(changes, progress.num_steps, place)
    except KeyboardInterrupt as interrupt:
        raise StoppedError(progress, TuningEnd(ended_by="interrupted")) from interrupt
    return progress.with_trial(changes, result), result


def refusal(progress: Progress, result: TrialResult, changes: ChangeSet) -> Refusal | None:
    """Return why a candidate's trial cannot be compared with the baseline; None if it can."""
    if result.outcome == "out_of_memory":
        return Refusal(outcome="out of memory", reason=result.problem)
    if not result.is_complete:
        outcome: TriedOutcome = "not applied" if result.cause == "not_applied" else "failed"
        return Refusal(outcome=outcome, reason=result.problem)
    absent = missing(result, progress.objective) or _other_work(progress, result)
    if absent is not None:
        return Refusal(outcome="failed", reason=absent)
    gate = check_gates(progress, result, changes)
    return None if gate.is_passed else Refusal(outcome="unsafe", reason=gate.reason)


def _other_work(progress: Progress, result: TrialResult) -> str | None:
    """Say that the steps have a different number of samples, so that steps/s would favour the shorter steps.

    Return None if equal.
    """
    before, after = progress.evidence.baselines[0].samples_per_step, result.samples_per_step
    if progress.objective != "step_s" or not before or not after or abs(after / before - 1) < 0.01:
        return None
    return f"its step has {after:.4g} samples, and the job's {before:.4g}: steps/s does not compare them"


def check_gates(progress: Progress, result: TrialResult, changes: ChangeSet) -> GateResult:
    """Check a trial against the unchanged job; check the changes that it adds against the applied changes too.

    The applied changes may have made the first check lenient: different workers draw different samples, and bf16
    rounds. An exact change added to them must still be exact.
    """
    if not result.is_complete:
        return GateResult(is_passed=True, reason=result.problem)
    if result.wrong_data is not None:
        return GateResult(is_passed=False, reason=result.wrong_data)
    baselines = progress.evidence.baselines
    losses = check_losses(result, baselines, changes)
    for gate in (losses, check_gradients(result, baselines, changes)):
        if not gate.is_passed:
            return gate
    added = progress.applied.added(changes)
    if progress.applied and added:
        alone, current = ChangeSet(changes=added), progress.current_trials
        for gate in (
            check_losses(result, current, alone),
            check_gradients(result, current, alone, others=baselines),
        ):
            if not gate.is_passed:
                return msgspec.structs.replace(gate, reason=f"compared with the applied changes: {gate.reason}")
    memory = check_memory(result, baselines)
    return memory if not memory.is_passed else losses
