"""What a goal takes, as rows and sentences for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable

from flatout.records.goal import GoalAnswer, GoalEstimate
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import number, percent, seconds

INTERVALS = "Intervals: nine in ten of the step time, with the extremes of all rates and prices together."
Row = tuple[str, str, str, str]  # what, expected, interval, where it comes from


def goal_sentence(answer: GoalAnswer) -> str:
    """The answer in one sentence."""
    goal = answer.goal
    if not answer.is_reached:
        return f"`{goal.text}` is out of reach of {counted(answer.num_gpus, 'GPU')}: {answer.nearest}"
    money = f" and {usd(answer.usd.value)}" if answer.usd else ""
    wanted = [calendar(goal.days)] if goal.days is not None else []
    wanted += [usd(goal.usd)] if goal.usd is not None else []
    if not wanted:
        return f"{counted(answer.num_gpus, 'GPU')} take {calendar(answer.days.value)}{money}"
    late = goal.days is not None and answer.days.high > goal.days
    risk = "; the slow end of the interval is later than that" if late else ""
    return (
        f"It takes {counted(answer.num_gpus, 'GPU')} to do it within {' and '.join(wanted)}: "
        f"{calendar(answer.days.value)}{money}, and none of the smaller numbers that were tried does{risk}"
    )


def goal_rows(answer: GoalAnswer) -> list[Row]:
    """One a quantity."""
    rows: list[Row] = [("GPUs", number(answer.num_gpus), "", answer.layout)]
    rows.append(("steps", number(answer.num_steps), "", f"{number(answer.global_batch)} sequences each"))
    rows.append(_row("time", answer.days, calendar))
    rows.append(_row("GPU-hours", answer.gpu_hours, lambda value: number(round(value))))
    if answer.usd:
        rows.append(_row("money", answer.usd, usd))
    if answer.energy_mwh:
        rows.append(_row("energy", answer.energy_mwh, _energy))
    if answer.carbon_t:
        rows.append(_row("carbon", answer.carbon_t, _carbon))
    rows.append(_row("interruptions", answer.interruptions, short))
    rows.append(_row("time that counts", answer.effective_share, percent))
    return rows


def option_rows(answer: GoalAnswer) -> list[list[str]]:
    """GPUs, days, money, step, layout, reached."""
    return [
        [
            number(one.num_gpus),
            "{1} ({2})".format(*_row("", one.days, calendar)),
            usd(one.usd.value) if one.usd else "unknown",
            seconds(one.step_time_s),
            one.layout,
            "yes" if one.is_reached else "no",
        ]
        for one in answer.options
    ]


def goal_text(answer: GoalAnswer, style: TextStyle) -> list[str]:
    """Lines for the terminal."""
    lines = [style.bold("The goal"), *style.wrapped(goal_sentence(answer))]
    lines += text_table(
        ["", "expected", "interval", "from"], [list(row) for row in goal_rows(answer)], style=style, flexible=[3]
    )
    if len(answer.options) > 1:
        lines += ["", "Other numbers of GPUs"]
        header = ["GPUs", "time", "money", "step", "layout", "reached"]
        lines += text_table(header, option_rows(answer), style=style, flexible=[4])
    for note in (INTERVALS, *answer.notes):
        lines += style.wrapped(note)
    return lines


def short(value: float) -> str:
    """Three significant digits at most: `30`, `12.5`, `1,234`."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 and value != round(value) else f"{value:.3g}"


def calendar(days: float) -> str:
    """`4.8 hours`, `29.9 days`."""
    return f"{short(days)} days" if days >= 2 else f"{short(days * 24)} hours"


def _energy(mwh: float) -> str:
    return f"{short(mwh)} MWh" if mwh >= 1 else f"{short(mwh * 1000)} kWh"


def _carbon(tonnes: float) -> str:
    return f"{short(tonnes)} t CO2e" if tonnes >= 1 else f"{short(tonnes * 1000)} kg CO2e"


def usd(value: float) -> str:
    """`$1.23M`, `$45,600`."""
    if value >= 1e6:
        return f"${value / 1e6:.3g}M" if value < 1e9 else f"${value / 1e9:.3g}B"
    return f"${round(value, -2) if value >= 10_000 else round(value):,.0f}"


def _row(name: str, value: GoalEstimate, written: Callable[[float], str]) -> Row:
    low, high = written(value.low), written(value.high)
    unit = high.partition(" ")[2]
    if unit and low.endswith(f" {unit}"):
        low = low.removesuffix(f" {unit}")
    return name, written(value.value), f"{low} to {high}", value.source
