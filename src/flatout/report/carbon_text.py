"""When a job should start so that its grid emits least: `CarbonAdvice` -> text."""

from __future__ import annotations

from flatout.records.carbon import CarbonAdvice, CarbonStart
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import number, percent

LEAST_SAVING = 0.01  # below it, waiting is not worth a line
_SHOWN = 6


def carbon_text(advice: CarbonAdvice, *, style: TextStyle) -> str:
    """Return the advice, the best starts, and the next command."""
    lines = [style.bold(_headline(advice)), ""]
    shown = sorted(advice.starts, key=lambda start: (start.g_per_kwh, start.delay_h))[:_SHOWN]
    if advice.now not in shown:
        shown.append(advice.now)
    rows = [_row(start) for start in sorted(shown, key=lambda start: start.delay_h)]
    lines += text_table(["start", "delay", "g CO2/kWh", "less", "kg CO2"], rows, style=style, flexible=[])
    lines += [
        "",
        *style.wrapped(
            f"{number(len(advice.starts))} starts at full hours were compared, on the same grid at the same power; "
            "another grid often saves more (`flatout cost jobs --region`)."
        ),
    ]
    if advice.best.delay_h and advice.best.less >= LEAST_SAVING:
        lines += [
            "",
            f"next: flatout submit --sbatch-options=--begin=now+{advice.best.delay_h}hours --dry-run -- COMMAND",
        ]
    return "\n".join(lines)


def _headline(advice: CarbonAdvice) -> str:
    best = advice.best
    if not best.delay_h or best.less < LEAST_SAVING:
        return f"start now: no start within {advice.most_delay_h} h emits 1 % less"
    return f"start at {best.hour}: {percent(best.less)} less, {best.delay_h} h later"


def _row(start: CarbonStart) -> list[str]:
    less = "-" if not start.delay_h else percent(start.less)
    kg_co2 = "-" if start.kg_co2 is None else number(start.kg_co2)
    return [start.hour, f"{start.delay_h} h", number(start.g_per_kwh), less, kg_co2]
