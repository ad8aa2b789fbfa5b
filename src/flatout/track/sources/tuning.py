"""The measures of `flatout tune --json`: the job unchanged and with the accepted changes."""

from __future__ import annotations

from typing import Any

from flatout.track.facts import ResultFacts, command_text, count, interval, items, measure, number, text, texts

SCHEMA = "flatout/tuning"


def facts(record: dict[str, Any]) -> ResultFacts:
    machine = texts(record, "machine")
    has_changes = bool(items(record, "changes"))
    return ResultFacts(
        measures=(
            *measure("step_s", number(record, "baseline_step_s"), "s", "lower"),
            *measure("peak_memory_bytes", number(record, "baseline_peak_memory_bytes"), "B", "lower"),
            *measure("tuned_step_s", number(record, "tuned_step_s"), "s", "lower"),
            *measure("tuned_peak_memory_bytes", number(record, "tuned_peak_memory_bytes"), "B", "lower"),
            # Neutral, because the gain also shrinks if the unchanged job becomes faster.
            *measure(
                "speedup",
                number(record, "speedup") if has_changes else None,
                "",
                "neutral",
                ends=interval(record, "interval"),
            ),
        ),
        job=command_text(items(record, "job_command")),
        device=machine.get("device"),
        num_ranks=count(machine, "num_ranks"),
        num_hosts=count(machine, "num_hosts"),
        environment=texts(record, "versions"),
        date=text(record, "date"),
        verdict=text(record, "verdict"),
    )
