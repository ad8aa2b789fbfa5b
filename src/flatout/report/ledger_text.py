"""The report of a goodput ledger as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.ledger import LedgerClass, LedgerImprovement, LedgerReport
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import percent, seconds

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
    "hang": "from the start of a hang until it was ended",
    "idle_held": "held by the job while no rank ran",
    "suspended": "stopped by a signal, or with the host",
    "other": "after the last step",
    "unknown": "without a heartbeat",
}

BASES = {
    "ddp": "from the gradient exchange, which DDP times in some iterations",
    "recording": "from a recording, as shares of its steps",
    "nvml": "from the clocks that NVML reports once per second",
}


def ledger_text(report: LedgerReport, *, style: TextStyle) -> str:
    """Return the totals, the table of classes, and notes on what is unknown, damaged or worth improving."""
    sections = [_totals(report, style), _table(report, style), _sources(report, style), _unknown(report, style)]
    blocks = ["\n".join(lines) for lines in sections if lines]
    text = "\n\n".join(blocks)
    notes = [line for note in _notes(report) for line in style.wrapped(note)]
    if notes:
        text += "\n" + "\n".join(notes)
    if report.levers:
        text += "\n\n" + "\n".join(style.wrapped(improvements_text(report.levers)))
    if report.what_failed:
        failures = [line for failure in report.what_failed for line in style.wrapped(f"- {failure}")]
        text += "\n\n" + "\n".join(failures)
    return text


def _totals(report: LedgerReport, style: TextStyle) -> list[str]:
    head = f"{_hours(report.allocated_device_s)} of device time"
    if report.goodput is not None:
        head += f", {percent(report.goodput)} of it productive"
    counts = [
        counted(report.runs, "run"),
        counted(report.attempts, "attempt"),
        counted(report.failures, "failure"),
        counted(report.hangs, "hang"),
    ]
    if report.nodes > 1:
        counts.insert(0, counted(report.nodes, "node"))
    lines = [style.bold(head), *style.wrapped(", ".join(counts))]
    if report.cost is not None:
        price = f"{_money(report.price_per_device_h)} per device-hour ({report.price_source})"
        lines += style.wrapped(f"Cost {_money(report.cost)}, at {price}")
    if report.energy_kwh is not None:
        power = f"{report.watts_per_device:.0f} W per device ({report.watts_source})"
        lines += style.wrapped(f"Energy {report.energy_kwh:.3g} kWh, at {power}")
    return lines


def _table(report: LedgerReport, style: TextStyle) -> list[str]:
    has_cost = report.cost is not None
    header = ["class", "device time", "share", "what it is"]
    if has_cost:
        header.insert(3, "cost")
    rows = [_row(ledger_class, has_cost=has_cost) for ledger_class in report.classes if ledger_class.device_s]
    return text_table(header, rows, style=style, flexible=[len(header) - 1])


def _sources(report: LedgerReport, style: TextStyle) -> list[str]:
    """Say how the classes within steps were measured."""
    measured = [ledger_class for ledger_class in report.classes if ledger_class.basis]
    return [line for ledger_class in measured for line in style.wrapped(_known_from(ledger_class))]


def _unknown(report: LedgerReport, style: TextStyle) -> list[str]:
    """Say which classes are unknown, and why."""
    lines = []
    for ledger_class in report.classes:
        if ledger_class.device_s is None:
            lines += style.wrapped(f"{_name(ledger_class)}: unknown. {ledger_class.reason}.")
    return lines


def _notes(report: LedgerReport) -> list[str]:
    notes = []
    if report.away_s:
        notes.append(
            f"Between its runs, the job waited in the queue for {seconds(report.away_s)}. This time is not in any "
            "class, because the job did not hold any device."
        )
    if report.unfinished_runs:
        verb = "have" if report.unfinished_runs > 1 else "has"
        notes.append(
            f"{counted(report.unfinished_runs, 'run')} {verb} no end line: "
            "still running, or Flatout itself was killed; time is counted up to the last line."
        )
    if report.damaged_lines:
        verb = "were" if report.damaged_lines > 1 else "was"
        first = f" ({report.first_damaged_line})" if report.first_damaged_line else ""
        notes.append(f"{counted(report.damaged_lines, 'line')} {verb} damaged and skipped{first}.")
    return notes


def improvements_text(levers: Sequence[LedgerImprovement]) -> str:
    first, *others = [_saving(improvement) for improvement in levers]
    return f"Device time saved in 30 days by halving each: {first}; then {'; '.join(others)}"


def _saving(improvement: LedgerImprovement) -> str:
    saving = (
        f"{improvement.name} ({_value(improvement)}): {_hours(3600 * max(improvement.gain_device_h, 0))} of device time"
    )
    if improvement.gain_cost is not None:
        saving += f", {_money(max(improvement.gain_cost, 0.0))}"
    return saving


def _value(improvement: LedgerImprovement) -> str:
    value = (
        f"{improvement.value:.3g} per 1,000 node-days"
        if improvement.name == "failure rate"
        else seconds(improvement.value)
    )
    return f"{value}, assumed" if improvement.is_assumed else value


def _row(ledger_class: LedgerClass, *, has_cost: bool) -> list[str]:
    assert ledger_class.device_s is not None
    share = "" if ledger_class.share is None else percent(ledger_class.share)
    row = [_name(ledger_class), _hours(ledger_class.device_s), share, MEANINGS.get(ledger_class.name, "")]
    if has_cost:
        row.insert(3, _money(ledger_class.cost))
    return row


def _known_from(ledger_class: LedgerClass) -> str:
    bases = " and ".join(BASES.get(basis, basis) for basis in ledger_class.basis)
    text = f"{_name(ledger_class)}: {bases}"
    if ledger_class.known_share is not None and ledger_class.reason is not None:
        text += (
            f", for {percent(ledger_class.known_share)} of the steps' time; in the rest it is included in productive"
        )
        text += f" ({ledger_class.reason})"
    return text + "."


def _name(ledger_class: LedgerClass) -> str:
    return ledger_class.name.replace("_", " ")


def _hours(value_s: float) -> str:
    return f"{value_s / 3600:.3g} h" if value_s >= 3600 else seconds(value_s)


def _money(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f}"
