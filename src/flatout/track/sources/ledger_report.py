"""The measures of `flatout ledger --json`: goodput, device time per step, and the classes of lost time."""

from __future__ import annotations

from typing import Any

from flatout.track.facts import ResultFacts, at, count, items, measure, number, parts, text

SCHEMA = "flatout/ledger-report"
_GOOD_CLASS = "productive"


def facts(record: dict[str, Any]) -> ResultFacts:
    steps = count(record, "steps")
    allocated_s = number(record, "allocated_device_s")
    per_step_s = allocated_s / steps if steps is not None and allocated_s else None
    shares = {text(one, "name"): at(one, "share") for one in items(record, "classes")}
    lost = {name: share for name, share in shares.items() if name is not None and name != _GOOD_CLASS}
    return ResultFacts(
        measures=(
            *measure("goodput", number(record, "goodput"), "", "higher"),
            *measure("device_s_per_step", per_step_s, "s", "lower"),
            *parts("share", lost, unit=""),
        ),
        job=None,
        num_devices=count(record, "num_devices"),
        num_hosts=count(record, "nodes"),
    )
