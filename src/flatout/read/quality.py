"""Describe data that was lost, repaired or uncertain in a file.

In: the counts that the other modules kept. Out: `Quality` notes with the numbers and their effect on the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from flatout import units
from flatout.read.durations import Repairs
from flatout.records.events import Quality

_MUCH_OF_SPAN = 0.01  # repaired time above this share of the trace makes its findings less certain
_TIME_IS_IDLE = "their time shows as idle or unattributed"

# for each damage counted while decoding: the problem ({} is the number) and its effect
DAMAGE: Mapping[str, tuple[str, str]] = {
    "unreadable": ("{} events could not be read: the JSON is broken there", _TIME_IS_IDLE),
    "repaired": ("{} events of broken JSON were repaired", "their times are right; some arguments may be lost"),
    "text time": ("{} events have their times written as text", "none: the times were read as numbers"),
    "no time": ("{} events have no usable start time and were skipped", _TIME_IS_IDLE),
    "no object": (
        '{} entries of "traceEvents" are not events and were skipped',
        "none, unless they were meant to be events",
    ),
    "control character": (
        "{} control characters in texts were replaced by spaces",
        "only names are affected; times are right",
    ),
    "bad utf-8": ("{} bytes that are not UTF-8 were replaced", "only names are affected; times are right"),
    "no number": (
        "{} values are infinite or not a number and are treated as missing",
        "times are right where they are given",
    ),
    "oversized id": (
        "{} ids do not fit into 64 bits and are treated as missing",
        "some events lose their link to others",
    ),
    "no name": ("{} events have no name", 'they are counted as "(no name)" and classified by their category alone'),
}


def damage_quality(damage: Counter[str], unknown_categories: set[str], dropped: Counter[str]) -> list[Quality]:
    notes = []
    for key, count in damage.items():
        if count:
            problem, effect = DAMAGE[key]
            notes.append(Quality(problem=_count(problem, count), effect=effect))
    for category in sorted(unknown_categories):
        label = f"the category {category!r}" if category else "no category"
        count = dropped[category or "no category"]
        problem = f"{{}} events of {label}, which no known profiler writes, were skipped"
        notes.append(Quality(problem=_count(problem, count), effect="whatever they recorded is missing"))
    return notes


def duration_quality(repairs: Repairs) -> list[Quality]:
    notes = []
    if repairs.num_negative:
        notes.append(
            Quality(
                problem=_count("{} events have a negative or no duration", repairs.num_negative),
                effect="they are treated as lasting 0 ns",
            )
        )
    if repairs.num_marks:
        notes.append(
            Quality(
                problem=_count("{} marks of steps (ProfilerStep) last far into what follows them", repairs.num_marks),
                effect="they were cut at the next step, or at the end of all other events: "
                f"{units.seconds(repairs.marks_ns / units.NS_PER_S)} less in total",
            )
        )
    if repairs.num_outlasting:
        is_much = repairs.outlasting_ns >= _MUCH_OF_SPAN * repairs.span_ns
        notes.append(
            Quality(
                problem=_count(
                    "{} pieces of GPU work outlast later work on their stream, which is impossible",
                    repairs.num_outlasting,
                ),
                effect="they were cut where the next work of the stream begins: "
                f"{units.seconds(repairs.outlasting_ns / units.NS_PER_S)} less in total",
                max_confidence="medium" if is_much else None,
            )
        )
    if repairs.num_clipped:
        notes.append(
            Quality(
                problem=_count("{} events have an impossible duration", repairs.num_clipped),
                effect="they were cut at the next start on their stream, or at the last start of the trace: "
                f"{units.seconds(repairs.clipped_ns / units.NS_PER_S)} less in total",
            )
        )
    return notes


def _count(text: str, count: int) -> str:
    """Fill in the number: `3 events have`, but `1 event has`."""
    text = text.replace("{}", f"{count:,}", 1)
    if count != 1:
        return text
    for plural, singular in _SINGULAR.items():
        text = text.replace(plural, singular)
    return text


_SINGULAR = {
    "events have their times": "event has its times",
    "events have": "event has",
    "marks of steps (ProfilerStep) last": "mark of a step (ProfilerStep) lasts",
    "follows them": "follows it",
    "pieces of GPU work outlast": "piece of GPU work outlasts",
    "on their stream": "on its stream",
    "events": "event",
    "entries": "entry",
    "are not events": "is not an event",
    "characters": "character",
    "bytes that are": "byte that is",
    "values are": "value is",
    "ids do": "id does",
    " were ": " was ",
    " count as": " counts as",
}
