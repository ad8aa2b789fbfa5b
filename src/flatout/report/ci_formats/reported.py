"""Make what all formats are written from: of a checked history, or of one result."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.tracking import GateOutcome, Measure, Reported, ReportedMeasure, SeriesCheck, TrackCheck
from flatout.report.phrases import counted
from flatout.report.track_phrases import (
    change_sentence,
    correlation_sentence,
    drift_sentence,
    environment_words,
    gate_sentence,
    parts_words,
    states_sentence,
    summary_sentence,
)


def reported_check(check: TrackCheck) -> Reported:
    """Return the newest result of each series, and what changed in the last results."""
    return Reported(
        title="Flatout: results over time",
        summary=". ".join(sentence for sentence in (summary_sentence(check), gate_sentence(check)) if sentence),
        measures=tuple(_of_series(series) for series in check.series),
        outcome=check.gate.outcome if check.gate is not None else None,
    )


def _of_series(series: SeriesCheck) -> ReportedMeasure:
    newest = series.points[-1]
    return ReportedMeasure(
        job=series.job,
        machine=series.machine,
        name=series.measure,
        unit=series.unit,
        direction=series.direction,
        value=newest.value,
        low=newest.low,
        high=newest.high,
        outcome=series.outcome,
        message=_message(series),
    )


def _message(series: SeriesCheck) -> str:
    """Return what happened to a series: its last change with what changed there, its drift, its states."""
    sentences = []
    if series.changes:
        tracked = series.changes[-1]
        sentences.append(change_sentence(series, tracked))
        if tracked.environment:
            sentences.append(f"changed there: {environment_words(tracked)}")
        if tracked.parts:
            sentences.append(f"parts: {parts_words(tracked.parts)}")
        if series.correlation:
            sentences.append(correlation_sentence(series))
    if series.drift is not None:
        sentences.append(drift_sentence(series.drift, series.unit))
    if series.states is not None:
        sentences.append(states_sentence(series.states, series.unit))
    if series.status == "too few results":
        sentences.append(f"{counted(len(series.points), 'result')}: too few to judge")
    return ". ".join(sentences)


def reported_result(
    job: str, machine: str, measures: Sequence[Measure], *, verdict: str | None, gate: GateOutcome | None
) -> Reported:
    """Return the measures of one result. The verdict and the gate of a comparison are of its relative cost."""
    words = f"verdict: {verdict}" if verdict is not None else ""
    shown = [measure for measure in measures if not measure.is_part]
    judged = _judged_name(shown)
    return Reported(
        title="Flatout: one result",
        summary=f"{counted(len(shown), 'measure')} of {job}" + (f"; {words}" if words else ""),
        measures=tuple(
            ReportedMeasure(
                job=job,
                machine=machine,
                name=measure.name,
                unit=measure.unit,
                direction=measure.direction,
                value=measure.value,
                low=measure.low,
                high=measure.high,
                outcome=_outcome(verdict, gate, is_judged=measure.name == judged),
                message=words if measure.name == judged else "",
            )
            for measure in shown
        ),
        outcome=gate,
    )


def _outcome(verdict: str | None, gate: GateOutcome | None, *, is_judged: bool) -> GateOutcome | None:
    """Return the outcome of a measure: of the gate, which only the judged one can fail, or of an undecided verdict."""
    if gate is not None:
        return gate if is_judged else "passed"
    return "undecided" if is_judged and verdict == "undecided" else None


def _judged_name(measures: Sequence[Measure]) -> str | None:
    """Return the measure that the verdict and the gate are of: the ratio, or the first one before there is a ratio."""
    names = [measure.name for measure in measures]
    ratios = [name for name in ("cost_relative_to_a", "speedup") if name in names]
    return next(iter([*ratios, *names]), None)
