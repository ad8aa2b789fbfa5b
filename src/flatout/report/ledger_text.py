"""The report of a goodput ledger as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.ledger import LedgerClass, LedgerLever, LedgerReport
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import number, percent, seconds

MEANINGS = {
    "productive": "steps made for the first time",
    "recomputed": "steps made again after a failure",
    "data": "waiting for batches",
    "exposed_communication": "communication not hidden by compute",
    "late_rank_wait": "waiting for the last rank to arrive",
    "throttled": "lost to clocks below the maximum",
    "checkpoint": "writing checkpoints",
    "evaluation": "evaluation",
    "start_up": "until the end of the first step",
    "restart": "from a failure to the end of the first step after it",
    "hang": "hung, until it was ended",
    "idle_held": "held by the job, without a rank",
    "other": "after the last step",
    "unknown": "not covered by a heartbeat",
}

BASES = {
    "ddp": "from the exchange of gradients, which DDP times in some iterations",
    "recording": "from a recording, as shares of its steps",
    "nvml": "from the clocks that NVML reports once per second",
}


def ledger_text(report: LedgerReport, *, style: TextStyle) -> str:
    head = f"{_hours(report.allocated_device_s)} of device time"
    if report.goodput is not None:
        head += f", {percent(report.goodput)} of it productive"
    lines = [style.bold(head)]
    counts = [(report.nodes, "node")] if report.nodes > 1 else []
    counts += [(report.runs, "run"), (report.attempts, "attempt"), (report.failures, "failure"), (report.hangs, "hang")]
    lines += style.wrapped(", ".join(f"{number(count)} {word}{'s' * (count != 1)}" for count, word in counts))
    if report.cost is not None:
        price = f"{_money(report.price_per_device_h)} per device-hour ({report.price_source})"
        lines += style.wrapped(f"Cost {_money(report.cost)}, at {price}")
    if report.energy_kwh is not None:
        lines += style.wrapped(
            f"Energy {report.energy_kwh:.3g} kWh, at {report.watts_per_device:.0f} W per device ({report.watts_source})"
        )
    header = ["class", "device time", "share", *(["cost"] if report.cost is not None else []), "what it is"]
    rows = [_row(one, has_cost=report.cost is not None) for one in report.classes if one.device_s]
    lines += ["", *text_table(header, rows, style=style, flexible=[len(header) - 1])]
    partly = [one for one in report.classes if one.basis]
    if partly:
        lines.append("")
        lines += [line for one in partly for line in style.wrapped(_known_from(one))]
    unknown = [one for one in report.classes if one.device_s is None]
    if unknown:
        lines.append("")
        lines += [line for one in unknown for line in style.wrapped(f"{_name(one)}: unknown. {one.reason}.")]
    if report.away_s:
        lines += style.wrapped(
            f"Between its runs the job waited in the queue for {seconds(report.away_s)}: not in any class, because it "
            "held no device."
        )
    if report.unfinished_runs:
        lines += style.wrapped(
            f"{number(report.unfinished_runs)} run{'s have' if report.unfinished_runs > 1 else ' has'} no end: "
            "it still runs, or Flatout itself was killed; its time is counted up to its last line."
        )
    if report.damaged_lines:
        counted = "1 line was" if report.damaged_lines == 1 else f"{number(report.damaged_lines)} lines were"
        lines += style.wrapped(f"{counted} damaged and skipped.")
    if report.levers:
        lines += ["", *style.wrapped(levers_text(report.levers))]
    if report.what_failed:
        lines += ["", *(line for text in report.what_failed for line in style.wrapped(f"- {text}"))]
    return "\n".join(lines)


def levers_text(levers: Sequence[LedgerLever]) -> str:
    first, *others = (
        f"{one.name} ({_value(one)}): {_hours(3600 * max(one.gain_device_h, 0))} of device time"
        + ("" if one.gain_cost is None else f", {_money(max(one.gain_cost, 0.0))}")
        for one in levers
    )
    return f"Device time saved in 30 days by halving each: {first}; then {'; '.join(others)}"


def _value(one: LedgerLever) -> str:
    value = f"{one.value:.3g} per 1,000 node-days" if one.name == "failure rate" else seconds(one.value)
    return f"{value}, assumed" if one.is_assumed else value


def _row(one: LedgerClass, *, has_cost: bool) -> list[str]:
    assert one.device_s is not None
    share = "" if one.share is None else percent(one.share)
    cost = [_money(one.cost)] if has_cost else []
    return [_name(one), _hours(one.device_s), share, *cost, MEANINGS.get(one.name, "")]


def _known_from(one: LedgerClass) -> str:
    text = f"{_name(one)}: {' and '.join(BASES.get(basis, basis) for basis in one.basis)}"
    if one.known_share is not None and one.reason is not None:
        text += f", for {percent(one.known_share)} of the steps' time; in the rest it is included in productive"
        text += f" ({one.reason})"
    return text + "."


def _name(one: LedgerClass) -> str:
    return one.name.replace("_", " ")


def _hours(value_s: float) -> str:
    return f"{value_s / 3600:.3g} h" if value_s >= 3600 else seconds(value_s)


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
