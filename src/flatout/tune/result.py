"""Build the result of a tuning from what it knows at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import fmean, median, pstdev, stdev
from typing import NamedTuple

from flatout.change.candidates import MAX_SAVED_SHARE, regular_share, share_in_trial
from flatout.records.change import JobFacts
from flatout.records.diagnosis import Diagnosis, Finding, RankDiagnosis
from flatout.records.step_time import StepTime
from flatout.records.trial import TrialResult
from flatout.records.tuning import ALL_BUT_COMPUTATION, Bound, PaddingChange, TuneResult, Tuning, TuningEnd
from flatout.trial.gates import ROUNDING_BAND
from flatout.trial.outputs import output_notes
from flatout.tune.call_limit import latency_note
from flatout.tune.open_ends import with_open_ends
from flatout.tune.outlook import outlook
from flatout.tune.profiled import Profiled
from flatout.tune.progress import NOTHING, Progress, Setup
from flatout.tune.trial_findings import is_seen_only_by_trials, with_evidence
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import trial_costs
from flatout.verdict.student import t_quantile

CONFIDENCE_TAIL = 0.05  # of the upper limit of a bound
MIN_STEPS = 2  # of which a spread can be taken


def tune_result(setup: Setup, progress: Progress, end: TuningEnd) -> TuneResult:
    """Return the result of a tuning that has ended."""
    first, runner, applied = progress.first, setup.runner, progress.applied
    facts = first.facts if first is not None else JobFacts()
    baselines = progress.evidence.baselines
    tuned = progress.current_trials
    baseline_step, tuned_step = _step_times(progress)
    versions = {"torch": facts.torch, "nccl": facts.nccl}
    tried = with_open_ends(setup, progress, (*progress.outcomes.tried, *progress.outcomes.pending.values()))
    rounding = [ROUNDING_BAND] if any(one.safety == "rounding" for one in tried) else []
    latencies = latency_note(baselines, tuned if applied else (), setup.options.latency)
    return TuneResult(
        tuning=Tuning(
            command=runner.command,
            changes=applied.changes,
            each=applied.each,
            covers_first_epoch_only=applied.covers_first_epoch_only,
            verdict=progress.claim.verdict if progress.applied and progress.claim is not None else None,
            num_trials=runner.num_trials,
            step_s=tuned_step.step_s if tuned_step is not None and progress.applied else None,
            machine=_machine(first, facts),
            versions={name: version for name, version in versions.items() if version is not None},
            sbatch_options=setup.options.sbatch_options or (),
            date=datetime.now(UTC).isoformat(timespec="seconds"),
        ),
        objective=progress.objective,
        allowed_safety=setup.options.allowed_safety,
        tried=tried,
        screened=progress.outcomes.screened,
        bounds=bounds(with_evidence(first, progress.evidence, NOTHING)) if first is not None else (),
        floor=progress.floor,
        num_steps=progress.usual_steps,
        baseline_step_s=baseline_step.step_s if baseline_step is not None else None,
        tuned_step_s=tuned_step.step_s if tuned_step is not None else None,
        baseline_step=baseline_step,
        tuned_step=tuned_step,
        baseline_peak_memory_bytes=_first_peak(baselines),
        tuned_peak_memory_bytes=_first_peak(tuned[::-1]),
        num_trials=runner.num_trials,
        num_resumed=runner.num_resumed,
        took_s=runner.spent_s(),
        end=end,
        outlook=outlook(setup, progress) if baselines else None,
        separation=runner.separation,
        balanced=_balanced(baselines, tuned),
        notes=(
            *progress.notes,
            *latencies,
            *rounding,
            *output_notes(runner.outputs),
        ),
    )


def _balanced(baselines: Sequence[TrialResult], tuned: Sequence[TrialResult]) -> PaddingChange | None:
    """Return the padding and the spread of the step time, before and after, if the tuned job has balanced batches."""
    with_padding = [trial for trial in tuned if trial.padding is not None and trial.is_complete]
    complete = [trial for trial in baselines if trial.is_complete]
    if not with_padding or not complete:
        return None
    padding = with_padding[-1].padding
    assert padding is not None
    return PaddingChange(
        padding=padding, baseline_step_spread=_step_spread(complete), tuned_step_spread=_step_spread(with_padding)
    )


def _step_spread(trials: Sequence[TrialResult]) -> float:
    """Return the standard deviation of the step time within a trial, as a share of its mean; the median trial's."""
    return median(pstdev(trial.step_s) / fmean(trial.step_s) for trial in trials)


def _first_peak(trials: Sequence[TrialResult]) -> int | None:
    """Return the peak memory of the first trial that has one: a profile that counts as a trial has none."""
    return next((trial.peak_memory_bytes for trial in trials if trial.peak_memory_bytes is not None), None)


def _machine(first: Profiled | None, facts: JobFacts) -> dict[str, str]:
    device = first.done.diagnosis.job.device if first is not None else None
    machine = {
        "device": device or facts.device,
        "num_ranks": facts.num_ranks,
        "ranks_per_host": facts.ranks_per_host,
        "num_hosts": facts.num_hosts,
    }
    return {name: str(value) for name, value in machine.items() if value is not None}


def bounds(profiled: Profiled) -> tuple[Bound, ...]:
    """Return the speedup from fixing each finding completely; without findings, from removing all but computation."""
    diagnosis = profiled.done.diagnosis
    if not diagnosis.findings:
        return _bound_of_computation(diagnosis)
    return tuple(_bound(diagnosis, finding) for finding in diagnosis.findings)


def _bound_of_computation(diagnosis: Diagnosis) -> tuple[Bound, ...]:
    """Return what a step would gain if its GPUs always computed, at the rank that computes most; () if unknown."""
    shares = [_share_computing(rank) for rank in diagnosis.ranks]
    known = [share for share in shares if share is not None and share.mean]
    if diagnosis.job.device is None or not known or len(known) < len(shares):
        return ()
    busiest, regular = max(known), regular_share(diagnosis)
    least = 1 - MAX_SAVED_SHARE
    most = None if busiest.low is None else 1 / max(busiest.low * regular, least)
    return (Bound(finding=ALL_BUT_COMPUTATION, speedup=1 / max(busiest.mean * regular, least), most=most),)


class _Share(NamedTuple):
    """The share of a rank's complete steps in which its GPU computes."""

    mean: float
    low: float | None  # lower limit at 95 % confidence, by how much the steps differ; None: a single step shows none


def _share_computing(rank: RankDiagnosis) -> _Share | None:
    """Return the share of a rank's complete steps in which its GPU computes; None without steps."""
    steps_s = sum(step.window_s for step in rank.steps)
    if not steps_s:
        return None
    mean = sum(step.parts_s["compute"] for step in rank.steps) / steps_s
    shares = [step.parts_s["compute"] / step.window_s for step in rank.steps if step.window_s]
    if len(shares) < MIN_STEPS:
        return _Share(mean, None)
    error = stdev(shares) / math.sqrt(len(shares))
    return _Share(mean, mean - t_quantile(CONFIDENCE_TAIL, len(shares) - 1) * error)


def _bound(diagnosis: Diagnosis, finding: Finding) -> Bound:
    share = min(share_in_trial(diagnosis, finding), MAX_SAVED_SHARE)
    return Bound(finding=finding.name, speedup=1 / (1 - share), is_of_trials_only=is_seen_only_by_trials(finding))


def is_better(result: TuneResult) -> bool:
    return result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"


def _step_times(progress: Progress) -> tuple[StepTime | None, StepTime | None]:
    """Return a step of the baseline and of the tuned job, with the work of some steps weighed alike."""
    costs = trial_costs(progress.evidence.named(), "step_s")
    arms = progress.evidence.baselines, progress.current_trials
    before, after = (arm_step([costs[trial.index] for trial in arm if trial.index in costs]) for arm in arms)
    return before, after
