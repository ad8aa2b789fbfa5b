"""The measures of `flatout profile --json` without a diagnosis, for example with `--light`."""

from __future__ import annotations

from typing import Any

from flatout.track.facts import ResultFacts, at, command_of_job, items, measure, number, text

SCHEMA = "flatout/recording-report"


def facts(record: dict[str, Any]) -> ResultFacts:
    measured = at(record, "measured")
    ranks = items(record, "ranks")
    hosts = {name for rank in ranks if (name := text(rank, "hostname")) is not None}
    devices = [name for rank in ranks if (name := text(rank, "device", "name")) is not None]
    step_s = number(measured, "regular_step_s") or number(measured, "step_s")
    return ResultFacts(
        measures=(
            *measure("step_s", step_s, "s", "lower"),
            *measure("mean_step_s", number(measured, "mean_step_s"), "s", "lower"),
            *measure("samples_per_s", number(measured, "samples_per_s"), "1/s", "higher"),
            *measure("tokens_per_s", number(measured, "tokens_per_s"), "1/s", "higher"),
            *measure("mfu", number(measured, "mfu"), "", "higher"),
            *measure("peak_memory_bytes", number(measured, "peak_memory_bytes"), "B", "lower"),
            *measure("parts.data_loading", number(measured, "loader_s"), "s", "lower", is_part=True),
        ),
        job=command_of_job(record),
        device=devices[0] if devices else None,
        num_ranks=len(ranks) or None,
        num_hosts=len(hosts) or None,
        host=min(hosts) if len(hosts) == 1 else None,
    )
