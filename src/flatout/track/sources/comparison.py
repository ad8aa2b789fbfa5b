"""The measures of `flatout compare --json`: those of command B, and its cost relative to A."""

from __future__ import annotations

from typing import Any

from flatout.records.tracking import Measure
from flatout.track.facts import ResultFacts, command_text, interval, items, measure, number, text

SCHEMA = "flatout/comparison"


def facts(record: dict[str, Any]) -> ResultFacts:
    speedup = number(record, "verdict", "speedup")
    ends = interval(record, "verdict", "interval")
    relative = 1 / speedup if speedup is not None and speedup > 0 else None
    relative_ends = (1 / ends[1], 1 / ends[0]) if ends is not None and ends[0] > 0 else None
    reference = text(record, "a", "commit") or text(record, "a", "ref")
    return ResultFacts(
        measures=(
            *measure("step_s", number(record, "b", "step_s"), "s", "lower"),
            *measure("peak_memory_bytes", number(record, "b", "peak_memory_bytes"), "B", "lower"),
            *measure("cost_relative_to_a", relative, "", "lower", ends=relative_ends),
            *[part for one in items(record, "parts") for part in _part(one)],
        ),
        job=command_text(items(record, "b", "command")),
        environment={"compared with": reference} if reference is not None else {},
        commit=text(record, "b", "commit"),
        verdict=text(record, "verdict", "verdict"),
        gate=text(record, "gate", "outcome"),
    )


def _part(record: Any) -> list[Measure]:
    name = text(record, "part")
    source = text(record, "source")
    if name is None or source is None:
        return []
    return measure(f"{source}.{name}", number(record, "b_s"), "s", "lower", is_part=True)
