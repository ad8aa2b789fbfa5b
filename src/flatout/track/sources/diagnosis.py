"""The measures of `flatout profile --json` and `flatout diagnose --json`: step time, throughput, memory, and parts."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from flatout.records.tracking import Measure
from flatout.track.facts import ResultFacts, at, command_of_job, count, items, measure, number, text

SCHEMA = "flatout/diagnosis"


def facts(record: dict[str, Any]) -> ResultFacts:
    job = at(record, "job")
    step_s = number(job, "regular_step_s") or number(job, "untraced_step_s") or number(job, "step_s")
    hosts = items(job, "hosts")
    return ResultFacts(
        measures=(
            *measure("step_s", step_s, "s", "lower"),
            *measure("mean_step_s", number(job, "mean_step_s"), "s", "lower"),
            *measure("samples_per_s", number(job, "samples_per_s"), "1/s", "higher"),
            *measure("tokens_per_s", number(job, "tokens_per_s"), "1/s", "higher"),
            *measure("mfu", number(job, "mfu"), "", "higher"),
            *measure("peak_memory_bytes", number(job, "peak_memory_bytes"), "B", "lower"),
            *_parts(record),
        ),
        job=command_of_job(record),
        device=text(job, "device"),
        num_ranks=count(job, "num_ranks"),
        num_hosts=len(hosts) or 1,
    )


def _parts(record: dict[str, Any]) -> list[Measure]:
    """Return the parts of a mean step, as means over ranks; without steps there are none."""
    seconds: dict[str, list[float]] = {}
    for rank in items(record, "ranks"):
        steps = items(rank, "steps")
        for step in steps:
            table = at(step, "parts_s")
            for name in table if isinstance(table, dict) else ():
                value = number(table, name)
                if value is not None:
                    seconds.setdefault(str(name), []).append(value)
    means = {name: fmean(values) for name, values in seconds.items()}
    return [
        part for name, value in means.items() for part in measure(f"parts.{name}", value, "s", "lower", is_part=True)
    ]
