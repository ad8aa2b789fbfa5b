"""Write a tuning run as the JSON of the contract `flatout/tuning`, version 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec

from flatout.records.change import Patch, Safety
from flatout.records.prediction import Prediction
from flatout.records.step_time import StepTime
from flatout.records.trial import SpellKind
from flatout.records.tuning import (
    Bound,
    EndedBy,
    MoreTrials,
    Outlook,
    PaddingChange,
    Separation,
    TriedOutcome,
    TriedSet,
    TuneResult,
)
from flatout.records.verdict import NoiseFloor, Objective, Verdict, VerdictName
from flatout.report.json import enveloped_json
from flatout.report.tuning_bounds import nothing_helps_by
from flatout.report.tuning_errors import in_interval, median_error, screening_error
from flatout.report.tuning_phrases import why_ended
from flatout.report.tuning_rows import Adopted, adopted_rows
from flatout.secrets import masked_command

SCHEMA = "flatout/tuning"
VERSION = 1


class AdoptedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the final set. Changes that were confirmed only together have no separate `speedup`."""

    name: str  # `dataloader-workers=15`, as in tuned.toml
    safety: Safety
    family: str  # of the [catalogue](changes.md)
    summary: str
    bound: float | None  # the maximum that the findings allow
    predicted_speedup: float | None  # for the step time; null if nothing was predicted
    predicted_interval: tuple[float, float] | None
    verdict: VerdictName | None  # compared with the changes applied before it
    speedup: float | None
    mean_speedup: float | None
    interval: tuple[float, float] | None
    num_pairs: int | None
    measured_in: str | None  # the name in `tried` of the set that it was measured in; null: measured alone
    is_shown_alone: bool  # false: no better than noise in its own trial, and measured only with others
    had_own_trial: bool  # false: tried only together with others
    environment: dict[str, str]
    launch: dict[str, tuple[str, ...]]  # by launcher, additional arguments for it
    patch: Patch | None  # the modification inside the training processes
    arguments: tuple[tuple[str, ...], ...]  # of the script


class TriedChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was tried, or several together. An unsafe change has no speed: it computes something else."""

    name: str  # names of changes joined by ` + `
    changes: tuple[str, ...]
    safety: Safety
    round: int
    outcome: TriedOutcome
    reason: str
    bound: float | None  # the maximum that the findings allow
    predicted_speedup: float | None
    predicted_interval: tuple[float, float] | None
    screened_speedup: float | None  # an estimate from one trial, not a claim
    verdict: VerdictName | None  # null if it had no trial but its own, or is unsafe
    speedup: float | None
    mean_speedup: float | None
    interval: tuple[float, float] | None  # null before the first interim analysis
    num_pairs: int | None
    num_void: int | None  # invalid pairs or trials
    num_baselines: int | None  # trials behind the verdict
    num_candidates: int | None
    probability_better: float | None  # that it is faster at all, even if the verdict is `undecided`
    more: MoreTrials | None  # what more trials would show; null: decided, never tried, or they would show nothing


class TuningReport(msgspec.Struct, frozen=True, kw_only=True):
    verdict: VerdictName  # all changes together against the baseline; `undecided` if that was not measured
    speedup: float | None  # baseline cost / cost with the changes; null if not measured
    mean_speedup: float | None  # not corrected for the selection of such verdicts
    interval: tuple[float, float] | None  # null if not measured, or before the first interim analysis
    changes: tuple[AdoptedChange, ...]  # empty: no change was accepted
    num_trials: int
    num_resumed: int  # of these, read from the journal of an interrupted tuning
    took_s: float
    ended_by: EndedBy
    why_ended: str  # the same as a sentence
    is_cut_short: bool  # it ended before it was done; the same command with a larger budget resumes it
    budget_s: float | None  # as given by the user
    max_trials: int | None  # as given by the user; null: no limit
    objective: Objective  # the cost that verdicts are on
    allowed_safety: Safety
    num_pairs: int | None  # trials of the smaller arm behind `verdict`
    num_baselines: int | None  # trials behind `verdict`
    num_candidates: int | None
    num_void: int | None  # invalid trials
    void_reasons: tuple[str, ...]
    order: str | None  # in which the trials ran: `AAABAB`, A the baseline
    error_rate: float | None  # of `interval`, over all interim analyses together
    min_effect: float | None  # a smaller gain or loss is not called better or worse
    reason: str | None  # why the verdict was given
    # Work that the trials of an arm did not show: then `speedup` and `interval` are of the other steps.
    unmeasured_work: tuple[SpellKind, ...]
    job_command: tuple[str, ...]  # the user's command; values that look like secrets are masked
    baseline_step_s: float | None
    tuned_step_s: float | None  # null if no change was accepted or it was not measured
    baseline_step: StepTime | None  # `baseline_step_s` in its parts: the regular step, and work that some steps have
    tuned_step: StepTime | None
    baseline_peak_memory_bytes: int | None
    tuned_peak_memory_bytes: int | None
    num_steps: int  # measured steps of a trial
    outlook: Outlook | None  # what the budget could show; null: no trial ran
    tried: tuple[TriedChange, ...]  # in the order in which they were tried, adopted ones too
    bounds: tuple[Bound, ...]
    nothing_helps_by: float | None  # gain that no change brings which leaves the computation as it is; null: not shown
    noise_floor: NoiseFloor | None
    median_prediction_error: float | None  # relative; null if no prediction has a measurement
    # the same for predictions as replayed; null if history changed none
    median_prediction_error_without_history: float | None
    num_predictions: int  # predictions with a measurement
    median_screening_error: float | None  # of predictions without pairs, against one trial each, its noise included
    num_screening_predictions: int
    num_in_predicted_interval: int  # measured values within their predicted interval
    machine: dict[str, str]
    versions: dict[str, str]
    date: str
    balanced: PaddingChange | None  # null: the tuned job has the script's batches
    separation: Separation | None  # how the files that trials write are kept apart; null in an older result
    notes: tuple[str, ...]


# Fields of a report that have the value of the verdict; null without one.
_OF_TUNING = (
    "speedup",
    "mean_speedup",
    "interval",
    "num_pairs",
    "num_baselines",
    "num_candidates",
    "num_void",
    "order",
    "error_rate",
    "min_effect",
    "reason",
)
_OF_CHANGE = ("verdict", "speedup", "mean_speedup", "interval", "num_pairs")
_OF_TRIED = (
    "verdict",
    "speedup",
    "mean_speedup",
    "interval",
    "num_pairs",
    "num_void",
    "num_baselines",
    "num_candidates",
    "probability_better",
)


def tuning_json(result: TuneResult, command: Sequence[str], *, pretty: bool = True) -> bytes:
    """Return the contract's object: schema, version, tool version, command (secrets masked), then the report."""
    return enveloped_json(SCHEMA, VERSION, command, tuning_report(result), pretty=pretty)


def tuning_report(result: TuneResult) -> TuningReport:
    tuning, verdict = result.tuning, result.tuning.verdict
    has_changes = bool(tuning.changes.changes)
    without = result.prediction_errors_without_history
    return TuningReport(
        verdict=verdict.verdict if verdict is not None else "undecided",
        **_of_verdict(verdict, _OF_TUNING),
        changes=tuple(change for row in adopted_rows(result) for change in _changes(row)),
        num_trials=result.num_trials,
        num_resumed=result.num_resumed,
        took_s=result.took_s,
        ended_by=result.end.ended_by,
        why_ended=why_ended(result.end),
        is_cut_short=result.is_cut_short,
        budget_s=result.request.budget_s if result.request is not None else None,
        max_trials=result.request.max_trials if result.request is not None else None,
        objective=result.objective,
        allowed_safety=result.allowed_safety,
        void_reasons=verdict.void_reasons if verdict is not None else (),
        unmeasured_work=verdict.unmeasured_work if verdict is not None else (),
        job_command=masked_command(tuning.command),
        baseline_step_s=result.baseline_step_s,
        tuned_step_s=result.tuned_step_s if has_changes else None,
        baseline_step=result.baseline_step,
        tuned_step=result.tuned_step if has_changes else None,
        baseline_peak_memory_bytes=result.baseline_peak_memory_bytes,
        tuned_peak_memory_bytes=result.tuned_peak_memory_bytes if has_changes else None,
        num_steps=result.num_steps,
        outlook=result.outlook,
        tried=tuple(_tried(one) for one in result.tried),
        bounds=result.bounds,
        nothing_helps_by=nothing_helps_by(result),
        noise_floor=result.floor,
        median_prediction_error=median_error(result),
        median_prediction_error_without_history=median(without) if without else None,
        num_predictions=len(result.prediction_errors),
        median_screening_error=screening_error(result),
        num_screening_predictions=len(result.screened_alone),
        num_in_predicted_interval=in_interval(result)[0],
        machine=tuning.machine,
        versions=tuning.versions,
        date=tuning.date,
        balanced=result.balanced,
        separation=result.separation,
        notes=result.notes,
    )


def _changes(row: Adopted) -> list[AdoptedChange]:
    is_alone = len(row.changes) == 1
    verdict, prediction = (row.verdict, row.prediction) if is_alone else (None, None)
    return [
        AdoptedChange(
            name=change.name,
            safety=change.safety,
            family=change.family,
            summary=change.knob.summary,
            bound=_bound(prediction, row.bound if is_alone else change.predicted_speedup),
            predicted_speedup=_finite(prediction.speedup) if prediction is not None else None,
            predicted_interval=_interval(prediction),
            **_of_verdict(verdict, _OF_CHANGE),
            measured_in=None if is_alone else row.name,
            is_shown_alone=change.name not in row.not_shown,
            had_own_trial=change.name not in row.only_together,
            environment=change.environment,
            launch=change.launch,
            patch=change.patch,
            arguments=tuple(map(masked_command, change.argument.words)) if change.argument is not None else (),
        )
        for change in row.changes
    ]


def _tried(one: TriedSet) -> TriedChange:
    verdict = one.verdict if one.outcome != "unsafe" else None
    return TriedChange(
        name=one.name,
        changes=one.changes,
        safety=one.safety,
        round=one.round,
        outcome=one.outcome,
        reason=one.reason,
        bound=_bound(one.prediction, one.bound),
        predicted_speedup=_finite(one.prediction.speedup) if one.prediction is not None else None,
        predicted_interval=_interval(one.prediction),
        screened_speedup=_finite(one.screened) if one.outcome != "unsafe" else None,
        **_of_verdict(verdict, _OF_TRIED),
        more=one.more,
    )


def _of_verdict(verdict: Verdict | None, names: Sequence[str]) -> dict[str, Any]:
    return {name: None if verdict is None else getattr(verdict, name) for name in names}


def _bound(prediction: Prediction | None, of_findings: float | None) -> float | None:
    """Return the bound of the step without the recorder if the prediction has it, else that of the traced step."""
    return _finite(prediction.bound if prediction is not None and prediction.bound is not None else of_findings)


def _interval(prediction: Prediction | None) -> tuple[float, float] | None:
    return (prediction.low, prediction.high) if prediction is not None else None


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
