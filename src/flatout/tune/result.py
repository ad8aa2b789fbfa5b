"""Record the outcome of each set that is tried, and build the result of a tuning from its state."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from flatout.change.candidates import share_in_trial
from flatout.predict.predict import predict_together
from flatout.records.change import SAFETIES, Change, ChangeSet, JobFacts
from flatout.records.prediction import NoPrediction, Prediction
from flatout.records.step_time import StepTime
from flatout.records.trial import TrialResult
from flatout.records.tuning import Bound, TriedOutcome, TriedSet, TuneResult, Tuning, TuningEnd
from flatout.records.verdict import Verdict
from flatout.trial.gates import ROUNDING_BAND
from flatout.trial.outputs import output_notes
from flatout.tune.runner import Profiled
from flatout.tune.state import TuningState
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import trial_costs


def record_tried(
    state: TuningState,
    change_set: ChangeSet,
    outcome: TriedOutcome,
    reason: str,
    *,
    screened: float | None = None,
    verdict: Verdict | None = None,
) -> None:
    """Record the outcome of a set that was tried on top of the applied changes."""
    added = state.added(change_set)
    for change in added:
        state.pending.pop(change.name, None)
    state.tried.append(_tried_set(state, added, outcome, reason, screened=screened, verdict=verdict))


def record_pending(state: TuningState, change: Change, reason: str, *, screened: float | None = None) -> None:
    """Record the progress of a chosen change; its outcome is recorded later, if the run gets that far."""
    if not any(change.name in tried.changes for tried in state.tried):
        state.pending[change.name] = _tried_set(state, (change,), "not reached", reason, screened=screened)


def _tried_set(
    state: TuningState,
    added: Sequence[Change],
    outcome: TriedOutcome,
    reason: str,
    *,
    screened: float | None = None,
    verdict: Verdict | None = None,
) -> TriedSet:
    alone = added[0] if len(added) == 1 else None
    return TriedSet(
        name=" + ".join(change.name for change in added),
        changes=tuple(change.name for change in added),
        safety=max((change.safety for change in added), key=SAFETIES.index),
        round=state.round,
        bound=alone.predicted_speedup if alone is not None else None,
        predicted_from=alone.predicted_from if alone is not None else (),
        prediction=_prediction_of(state, added),
        outcome=outcome,
        screened=screened,
        verdict=verdict,
        reason=reason,
    )


def _prediction_of(state: TuningState, added: Sequence[Change]) -> Prediction | None:
    """Predict several changes by one replay with all of them, because their savings overlap.

    None if one of them has no prediction: the measurement then includes its unknown gain.
    """
    if len(added) == 1:
        return state.predictions.get(added[0].name)
    if not state.predictions.keys() >= {change.name for change in added}:
        return None
    if state.situation is None or isinstance(state.situation, NoPrediction):
        return None
    prediction = predict_together(state.situation, added, state.calibration)
    return prediction if isinstance(prediction, Prediction) else None


def tune_result(state: TuningState, verdict: Verdict | None, end: TuningEnd) -> TuneResult:
    first, runner = state.first, state.runner
    facts = first.facts if first is not None else JobFacts()
    before = state.baselines[0] if state.baselines else None
    tuned = state.current_trials if state.applied else state.baselines
    baseline_step, tuned_step = _step_times(state.baselines, tuned)
    device = first.done.diagnosis.job.device if first is not None else None
    machine = {
        "device": device or facts.device,
        "num_ranks": facts.num_ranks,
        "ranks_per_host": facts.ranks_per_host,
        "num_hosts": facts.num_hosts,
    }
    return TuneResult(
        tuning=Tuning(
            command=runner.command,
            changes=state.applied_set(),
            each=tuple(state.confirmed),
            covers_first_epoch_only=state.covers_first_epoch_only,
            verdict=verdict,
            num_trials=runner.num_trials,
            machine={name: str(value) for name, value in machine.items() if value is not None},
            versions={n: v for n, v in (("torch", facts.torch), ("nccl", facts.nccl)) if v is not None},
            sbatch_options=state.options.sbatch_options or (),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
        objective=state.objective,
        allowed_safety=state.options.allowed_safety,
        tried=(*state.tried, *state.pending.values()),
        screened=tuple(state.screened),
        bounds=state.bounds,
        floor=state.floor,
        num_steps=state.num_steps,
        baseline_step_s=baseline_step.step_s if baseline_step is not None else None,
        tuned_step_s=tuned_step.step_s if tuned_step is not None else None,
        baseline_step=baseline_step,
        tuned_step=tuned_step,
        baseline_peak_memory_bytes=before.peak_memory_bytes if before is not None else None,
        tuned_peak_memory_bytes=tuned[-1].peak_memory_bytes if tuned else None,
        num_trials=runner.num_trials,
        num_resumed=runner.num_resumed,
        took_s=runner.spent_s(),
        end=end,
        separation=runner.separation,
        notes=(
            *state.notes,
            *([ROUNDING_BAND] if any(tried.safety == "rounding" for tried in state.tried) else []),
            *output_notes(runner.outputs),
        ),
    )


def bounds(profiled: Profiled) -> tuple[Bound, ...]:
    """Return the speedup from fixing each finding completely."""
    return tuple(
        Bound(finding=finding.name, speedup=1 / (1 - min(share_in_trial(profiled.done.diagnosis, finding), 0.99)))
        for finding in profiled.done.diagnosis.findings
    )


def is_better(result: TuneResult) -> bool:
    return result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"


def _step_times(
    baselines: Sequence[TrialResult], tuned: Sequence[TrialResult]
) -> tuple[StepTime | None, StepTime | None]:
    """Return a step of the baseline and of the tuned job, with the work of some steps weighed alike."""
    costs = trial_costs(list({trial.index: trial for trial in (*baselines, *tuned)}.values()), "step_s")
    before, after = (
        arm_step([costs[trial.index] for trial in arm if trial.index in costs]) for arm in (baselines, tuned)
    )
    return before, after
