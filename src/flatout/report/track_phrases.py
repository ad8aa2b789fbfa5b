"""Phrases about a history: values with their units, a change, and where it is."""

from __future__ import annotations

import math

from flatout import units
from flatout.records.tracking import CommitRange, Drift, PartShift, SeriesCheck, TrackCheck, TrackedChange, TwoStates
from flatout.report.phrases import counted

_SHORT_COMMIT = 10
_FORMS = {
    "s": units.seconds,
    "B": units.num_bytes,
    "B/s": units.bytes_per_s,
    "FLOP/s": units.flops_per_s,
}
FEW_INDEPENDENT = 30  # results: of fewer, a correlation is too uncertain to hold the rate
STRONG_CORRELATION = 0.5  # from here, the rate is not quite held either
NO_COMMIT = "an unknown commit"
STATUS_ORDER = ("changed", "drifting", "two states", "steady", "too few results")


def value_text(value: float, unit: str) -> str:
    """Return a value of a measure with its unit."""
    form = _FORMS.get(unit)
    if form is not None:
        return form(value)
    return f"{units.number(value)} {unit}".rstrip()


def change_percent(before: float, after: float) -> str:
    """Return a change relative to the value before: `+9.2 %`."""
    if before == 0 or not math.isfinite(after / before):
        return "from 0"
    share = after / before - 1
    return f"{'+' if share >= 0 else '-'}{units.percent(abs(share))}"


def short_commit(commit: str | None) -> str:
    """Return the first characters of a commit's hash, or a name as it is."""
    if commit is None:
        return NO_COMMIT
    is_hash = len(commit) >= 20 and all(character in "0123456789abcdef" for character in commit)
    return commit[:_SHORT_COMMIT] if is_hash else commit


def change_sentence(series: SeriesCheck, tracked: TrackedChange) -> str:
    """Return what changed, and among which commits."""
    change = tracked.change
    word = "changed" if change.effect == "neutral" else change.effect
    values = f"{value_text(change.before, series.unit)} to {value_text(change.after, series.unit)}"
    return f"{word}, {change_percent(change.before, change.after)} ({values}), {commits_words(tracked.commits)}"


def commits_words(commits: CommitRange) -> str:
    """Return the range of commits in words."""
    first, last = short_commit(commits.first_after), short_commit(commits.last_before)
    if commits.first_after is None and commits.last_before is None:
        return "between results of unknown commits"
    if commits.first_after == commits.last_before:
        return f"between two results of commit {first}"
    among = "" if commits.num_results == 1 else f", among {commits.num_results} results"
    return f"after {last}, up to {first}{among}"


def environment_words(tracked: TrackedChange) -> str:
    """Return the facts that differ between the two results around a change."""
    pairs = [f"{one.name} {one.before or 'unknown'} -> {one.after or 'unknown'}" for one in tracked.environment]
    return "; ".join(pairs)


def parts_words(parts: tuple[PartShift, ...]) -> str:
    """Return the parts with their values before and after a change."""
    return "; ".join(_part_words(part) for part in parts)


def _part_words(part: PartShift) -> str:
    name = part.name.rpartition(".")[2]
    return f"{name} {value_text(part.before, part.unit)} -> {value_text(part.after, part.unit)}"


def drift_sentence(drift: Drift, unit: str) -> str:
    word = "" if drift.effect == "neutral" else f" ({drift.effect})"
    return (
        f"drifts by {change_percent(drift.start, drift.end)}{word}, from {value_text(drift.start, unit)} to "
        f"{value_text(drift.end, unit)}; no single commit did it"
    )


def states_sentence(states: TwoStates, unit: str) -> str:
    return (
        f"alternates between {value_text(states.low, unit)} and {value_text(states.high, unit)} "
        f"({units.percent(states.high_share)} of the results, {counted(states.num_switches, 'change')}): the machine "
        "has two states"
    )


def correlation_sentence(series: SeriesCheck) -> str:
    """Say that neighbouring results are alike, and whether the rate of false alarms holds nevertheless."""
    num_results = len(series.points)
    num_independent = num_results * (1 - series.correlation) / (1 + series.correlation)
    sentence = (
        f"neighbouring results are alike (correlation {series.correlation:.1f}): the {num_results} results count as"
        f" {num_independent:.0f} independent ones"
    )
    if num_independent < FEW_INDEPENDENT or series.correlation >= STRONG_CORRELATION:
        sentence += "; false changes can be about twice as frequent as stated"
    return sentence


def summary_sentence(check: TrackCheck) -> str:
    """Return how many series there are of each status."""
    statuses = [one.status for one in check.series]
    counts = [f"{statuses.count(status)} {status}" for status in STATUS_ORDER if status in statuses]
    return f"{counted(check.num_results, 'result')}, {counted(len(check.series), 'measure')}: {', '.join(counts)}"


def rate_sentence(check: TrackCheck) -> str:
    """Return what the false-alarm rate means."""
    return (
        f"In at most {units.percent(check.false_alarm_rate)} of checks of unchanged jobs, a change is reported by "
        f"mistake. Changes below {units.percent(check.min_effect)} are not reported."
    )


def gate_sentence(check: TrackCheck) -> str:
    """Return the outcome of the gate, or an empty text without one."""
    gate = check.gate
    if gate is None:
        return ""
    limit = units.percent(gate.limit)
    if gate.outcome == "failed":
        failed = counted(gate.num_failed, "measure")
        return f"Gate failed: {failed} became worse by more than {limit} in the last {gate.last} results"
    if gate.outcome == "undecided":
        return f"Gate undecided: too few results to judge {counted(gate.num_undecided, 'measure')}"
    return f"Gate passed: no measure became worse by more than {limit} in the last {gate.last} results"
