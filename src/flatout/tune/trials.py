"""Run trials within the budget, and check them by the gates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

import msgspec

from flatout.change.arguments import sets_batch
from flatout.records.change import ChangeSet
from flatout.records.stop_rule import StopRule
from flatout.records.trial import TrialResult
from flatout.records.tuning import TriedOutcome, TuningEnd
from flatout.trial.gates import GateResult, check_losses, check_memory, may_resample
from flatout.trial.gradient_gate import check_gradients
from flatout.trial.latency_gate import check_latency
from flatout.trial.output_gate import check_model_outputs
from flatout.tune.budget import FEW_TRIALS, num_left, used_up
from flatout.tune.call_limit import with_latency
from flatout.tune.progress import Progress, Setup, StoppedError
from flatout.tune.trial_length import KnownTimes, trial_length
from flatout.verdict.cost import TIMES, missing, trial_costs

SOUGHT_IN_FEW, SOUGHT = 0.3, 0.1  # effect that a trial should help to see, where the budget allows few trials or more


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a trial cannot be compared with the baseline."""

    outcome: TriedOutcome
    reason: str
    may_be_noise: bool = False  # see `GateResult`


def run_trial(
    setup: Setup,
    progress: Progress,
    changes: ChangeSet,
    *,
    place: str,
    num_reserved: int = 0,
    other_samples: bool = False,
    other_rounding: bool = False,
) -> tuple[Progress, TrialResult]:
    """Run one trial, and return what is known with it. Raises StoppedError if the budget does not allow it."""
    end = used_up(setup, progress, changes, num_reserved=num_reserved)
    if end is not None:
        raise StoppedError(progress, end)
    length = next_length(setup, progress, changes)
    try:
        with setup.interrupts.raised():
            variation = {"other_rounding": True} if other_rounding else {"other_samples": other_samples}
            result = setup.runner.trial(changes, length, place, **variation)
    except KeyboardInterrupt as interrupt:
        raise StoppedError(progress, TuningEnd(ended_by="interrupted")) from interrupt
    return progress.with_trial(changes, result), result


def next_length(setup: Setup, progress: Progress, changes: ChangeSet) -> StopRule | int:
    """Return when the next trial of a set has counted enough steps, or how many it counts."""
    if progress.num_steps is not None:
        return progress.num_steps
    is_few = num_left(setup) < FEW_TRIALS
    rule = trial_length(
        job_times(progress),
        effect=SOUGHT_IN_FEW if is_few else SOUGHT,
        budget_left_s=setup.options.budget_s - setup.runner.spent_s(),
        reference_step_s=_reference_step_s(progress, changes),
    )
    return (
        rule if progress.latency is None else with_latency(rule, progress.latency, is_candidate=bool(changes.changes))
    )


def job_times(progress: Progress) -> KnownTimes:
    """Return what the trials of the unchanged job show about the times that decide how long a trial is."""
    run_sd = progress.floor.between_sd if progress.floor is not None else None
    return measured_times(progress.evidence.baselines, run_sd)


def measured_times(trials: Sequence[TrialResult], run_sd: float | None) -> KnownTimes:
    """Return the times that complete trials of a job show; `run_sd` is the standard deviation between them."""
    if not trials:
        return KnownTimes()
    costs = trial_costs(trials, "step_s")
    steps_s = [cost.step_s for cost in costs.values() if cost.step_s is not None]
    periods = [cost.period_steps for cost in costs.values() if cost.period_steps is not None]
    starts_s = [trial.took_s - sum(trial.step_s) for trial in trials if trial.took_s is not None]
    return KnownTimes(
        step_s=median(steps_s) if steps_s else None,
        start_s=median(starts_s) if starts_s else None,
        run_sd=run_sd,
        period=round(median(periods)) if periods else None,
    )


def _reference_step_s(progress: Progress, changes: ChangeSet) -> float | None:
    """Return the mean step that a candidate is compared with; None if it may do other work, or the cost is not time.

    A trial of the applied changes has no reference: it is one.
    """
    added = progress.applied.added(changes)
    does_other_work = any(change.argument is not None or sets_batch(change) for change in added)
    if not added or does_other_work or progress.objective not in TIMES or not progress.current_trials:
        return None
    return fmean(fmean(trial.step_s) for trial in progress.current_trials)


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
    if gate.is_passed:
        return None
    return Refusal(outcome=gate.outcome, reason=gate.reason, may_be_noise=gate.may_be_noise)


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
    baselines = _references(progress)
    losses = check_losses(result, baselines, changes)
    outputs = check_model_outputs(result, baselines, changes)
    for gate in (losses, check_gradients(result, baselines, changes), outputs):
        if not gate.is_passed:
            return gate
    added = progress.applied.added(changes)
    if progress.applied and added:
        alone, current = ChangeSet(changes=added), progress.current_trials
        for gate in (
            check_losses(result, current, alone),
            check_gradients(result, current, alone, others=baselines),
            check_model_outputs(result, current, alone),
        ):
            if not gate.is_passed:
                return msgspec.structs.replace(gate, reason=f"compared with the applied changes: {gate.reason}")
    only_infers = any(trial.model_outputs for trial in baselines)
    for gate in _check_needs(progress, result, changes, only_infers=only_infers):
        if not gate.is_passed:
            return gate
    return outputs if only_infers else losses


def _references(progress: Progress) -> tuple[TrialResult, ...]:
    """Return the trials of the unchanged job, and those of the applied changes that show how far rounding carries.

    Where the applied changes may draw other samples, the unchanged job is not a strict reference anyway.
    """
    baselines = progress.evidence.baselines
    if not progress.applied:
        return baselines
    current = progress.current_trials
    disturbed = tuple(trial for trial in current if trial.has_other_rounding)
    if any(may_resample(trial, baselines, progress.applied.changes) for trial in disturbed):
        return baselines
    return (*baselines, *disturbed)


def _check_needs(
    progress: Progress, result: TrialResult, changes: ChangeSet, *, only_infers: bool
) -> Iterator[GateResult]:
    """Check the memory that a trial needs, and the time of its calls where the user limits it."""
    has_other_batch = only_infers and any(sets_batch(change) for change in changes.changes)
    if not has_other_batch:  # a larger batch needs more memory; too much of it ends the trial
        yield check_memory(result, progress.evidence.baselines)
    if progress.latency is not None:
        others = [trial for trial in progress.evidence.of(changes) if trial.index != result.index]
        yield check_latency([*others, result], progress.latency)
