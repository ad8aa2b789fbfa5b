"""Check a history: find the changes of each measure, and say among which commits they are and what changed there.

In: a `ResultHistory`. Out: a `TrackCheck`. The rate of false alarms is of the whole check: each of its series may have
its share of it (Bonferroni), so the chance that a check of unchanged jobs reports anything is at most that rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import msgspec

from flatout.errors import InputError, UsageError
from flatout.records.tracking import (
    CommitRange,
    Direction,
    Effect,
    EnvironmentChange,
    GateOutcome,
    LevelChange,
    Measure,
    PartShift,
    Segmentation,
    SeriesCheck,
    SeriesStatus,
    TrackCheck,
    TrackedChange,
    TrackedResult,
    TrackGate,
    TrackPoint,
)
from flatout.track.history_file import ResultHistory
from flatout.track.level_changes import LEAST_RESULTS, segmentation

DEFAULT_RATE = 0.01
DEFAULT_EFFECT = 0.01
DEFAULT_LAST = 20
_MOST_PARTS = 5
_LEAST_PART_SHIFT = 0.1  # of the largest shift


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    rate: float = DEFAULT_RATE  # of false alarms, of the whole check
    min_effect: float = DEFAULT_EFFECT
    gate: float | None = None  # 0.03: fail if a series has become worse by more than 3 %
    last: int = DEFAULT_LAST  # results of each series in which a change fails the gate
    jobs: tuple[str, ...] = ()  # texts in the names of jobs; empty: all
    machines: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()  # names; empty: all
    branches: tuple[str, ...] = ()


class _Entry(msgspec.Struct, frozen=True):
    """One value of a series, with the result that it belongs to."""

    result: TrackedResult
    measure: Measure


_Key = tuple[str, str, str]  # job, machine, measure


def check_history(path: Path, history: ResultHistory, request: CheckRequest) -> TrackCheck:
    """Check all series that the request selects. Raise InputError without results, UsageError if none match."""
    if not history.results:
        raise InputError(_no_results(path, history), hint="add some with `flatout track add`")
    series = _series(_selected(history.results, request), request.measures)
    if not series:
        raise UsageError(
            f"no result in `{path}` has what was asked for", hint="see what it has with `flatout track show`"
        )
    rate = request.rate / len(series)
    checks = [_series_check(key, entries, rate, request) for key, entries in series.items()]
    return TrackCheck(
        path=str(path),
        num_results=len(history.results),
        num_damaged=history.num_damaged,
        false_alarm_rate=request.rate,
        min_effect=request.min_effect,
        series=tuple(checks),
        gate=_gate(checks, request),
        notes=_notes(history),
    )


def _no_results(path: Path, history: ResultHistory) -> str:
    if not history.num_damaged and not history.num_newer:
        return f"`{path}` has no results"
    return (
        f"`{path}` has no results that can be read: lines that are damaged: {history.num_damaged}, of a later version"
        f" of Flatout: {history.num_newer}"
    )


def _selected(results: Sequence[TrackedResult], request: CheckRequest) -> list[TrackedResult]:
    return [
        result
        for result in results
        if (not request.jobs or any(text in result.job for text in request.jobs))
        and (not request.machines or any(text in result.machine for text in request.machines))
        and (not request.branches or (result.commit is not None and result.commit.branch in request.branches))
    ]


def _series(results: Sequence[TrackedResult], names: Sequence[str]) -> dict[_Key, list[_Entry]]:
    """Return the values of each measure in order: by the times of commits if all are known, else as measured."""
    series: dict[_Key, list[_Entry]] = {}
    for result in results:
        for measure in result.measures:
            is_wanted = measure.name in names if names else not measure.is_part
            if is_wanted and math.isfinite(measure.value):
                series.setdefault((result.job, result.machine, measure.name), []).append(_Entry(result, measure))
    return {key: _ordered(entries) for key, entries in series.items()}


def _ordered(entries: list[_Entry]) -> list[_Entry]:
    commit_times = [entry.result.commit.unix_s if entry.result.commit is not None else None for entry in entries]
    are_known = None not in commit_times
    times = [
        (commit_s if are_known and commit_s is not None else 0.0, entry.result.measured_unix_s)
        for commit_s, entry in zip(commit_times, entries, strict=True)
    ]
    order = sorted(range(len(entries)), key=lambda place: times[place])
    return [entries[place] for place in order]


def _series_check(key: _Key, entries: list[_Entry], rate: float, request: CheckRequest) -> SeriesCheck:
    newest = entries[-1].measure
    parts = segmentation([entry.measure.value for entry in entries], rate=rate, min_effect=request.min_effect)
    changes = tuple(_tracked_change(entries, parts.changes, place, request.last) for place in range(len(parts.changes)))
    drift = parts.drift
    if drift is not None:
        drift = msgspec.structs.replace(drift, effect=_effect(newest.direction, drift.start, drift.end))
    series = SeriesCheck(
        job=key[0],
        machine=key[1],
        measure=key[2],
        unit=newest.unit,
        direction=newest.direction,
        status=_status(parts, len(entries)),
        level=parts.level,
        points=tuple(_point(entry) for entry in entries),
        changes=changes,
        drift=drift,
        states=parts.states,
        outliers=parts.outliers,
        correlation=parts.correlation,
    )
    return msgspec.structs.replace(series, outcome=_outcome(series, request.gate))


def _status(parts: Segmentation, num_results: int) -> SeriesStatus:
    if num_results < LEAST_RESULTS:
        return "too few results"
    if parts.changes:
        return "changed"
    if parts.drift is not None:
        return "drifting"
    return "two states" if parts.states is not None else "steady"


def _point(entry: _Entry) -> TrackPoint:
    return TrackPoint(
        value=entry.measure.value,
        low=entry.measure.low,
        high=entry.measure.high,
        commit=_commit_id(entry.result),
        measured_unix_s=entry.result.measured_unix_s,
    )


def _effect(direction: Direction, before: float, after: float) -> Effect:
    if direction == "neutral" or before == after:
        return "neutral"
    return "worse" if (after > before) == (direction == "lower") else "better"


def _tracked_change(entries: Sequence[_Entry], changes: Sequence[LevelChange], place: int, last: int) -> TrackedChange:
    change = changes[place]
    start = changes[place - 1].index if place else 0
    end = changes[place + 1].index if place + 1 < len(changes) else len(entries)
    before = [entry.result for entry in entries[start : change.index]]
    after = [entry.result for entry in entries[change.index : end]]
    effect = _effect(entries[-1].measure.direction, change.before, change.after)
    return TrackedChange(
        change=msgspec.structs.replace(change, effect=effect),
        commits=CommitRange(
            last_before=_commit_id(entries[change.low - 1].result),
            first_after=_commit_id(entries[change.high].result),
            num_results=change.high - change.low + 1,
        ),
        environment=_environment_changes(entries[change.low - 1].result, entries[change.high].result),
        parts=_part_shifts(before, after),
        num_since=len(entries) - change.index,
        is_recent=len(entries) - change.index <= last,
        is_lasting=place == len(changes) - 1,
    )


def _commit_id(result: TrackedResult) -> str | None:
    return result.commit.id if result.commit is not None else None


def _environment_changes(before: TrackedResult, after: TrackedResult) -> tuple[EnvironmentChange, ...]:
    names = sorted({*before.environment, *after.environment})
    pairs = [(name, before.environment.get(name), after.environment.get(name)) for name in names]
    return tuple(EnvironmentChange(name=name, before=a, after=b) for name, a, b in pairs if a != b)


def _part_shifts(before: Sequence[TrackedResult], after: Sequence[TrackedResult]) -> tuple[PartShift, ...]:
    """Return the parts that changed most, by the medians of both sides."""
    sides = _part_medians(before), _part_medians(after)
    shifts = [
        PartShift(name=name, unit=unit, before=value, after=sides[1][name, unit])
        for (name, unit), value in sides[0].items()
        if (name, unit) in sides[1]
    ]
    shifts.sort(key=lambda shift: -abs(shift.after - shift.before))
    least = _LEAST_PART_SHIFT * abs(shifts[0].after - shifts[0].before) if shifts else 0.0
    return tuple(shift for shift in shifts[:_MOST_PARTS] if abs(shift.after - shift.before) > least)


def _part_medians(results: Sequence[TrackedResult]) -> dict[tuple[str, str], float]:
    values: dict[tuple[str, str], list[float]] = {}
    for result in results:
        for part in result.measures:
            if part.is_part:
                values.setdefault((part.name, part.unit), []).append(part.value)
    return {key: median(each) for key, each in values.items()}


def _gate(checks: Sequence[SeriesCheck], request: CheckRequest) -> TrackGate | None:
    if request.gate is None:
        return None
    outcomes = [check.outcome for check in checks]
    num_failed, num_undecided = outcomes.count("failed"), outcomes.count("undecided")
    outcome: GateOutcome = "passed"
    if num_failed:
        outcome = "failed"
    elif num_undecided:
        outcome = "undecided"
    return TrackGate(
        limit=request.gate,
        last=request.last,
        outcome=outcome,
        num_failed=num_failed,
        num_undecided=num_undecided,
    )


def _outcome(series: SeriesCheck, gate: float | None) -> GateOutcome | None:
    if gate is None:
        return None
    if series.status == "too few results":
        return "undecided"
    return "failed" if _fails(series, gate) else "passed"


def _fails(check: SeriesCheck, gate: float) -> bool:
    """Return whether the level is worse than before the last results by more than the gate, by shown changes."""
    recent = [tracked.change for tracked in check.changes if tracked.is_recent]
    if not recent:
        return False
    before, after = recent[0].before, recent[-1].after
    if _effect(check.direction, before, after) != "worse" or before == 0:
        return False
    return max(after / before, before / after if after else math.inf) - 1 > gate


def _notes(history: ResultHistory) -> tuple[str, ...]:
    notes = []
    if history.num_newer:
        notes.append(f"{history.num_newer} results of a later version of Flatout were skipped")
    return tuple(notes)
