"""Print the requirements of a goal, as rows and sentences for the terminal and the page."""

from __future__ import annotations

from collections.abc import Callable

from flatout.records.goal import GoalAnswer, GoalEstimate, GoalOption
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import number, percent, seconds

INTERVALS = "Intervals combine the 90 % interval of the step time with the extremes of all rates and prices."
OPTIONS = ("GPUs", "time", "money", "step", "layout", "probability", "reached")
Row = tuple[str, str, str, str]  # what, expected, interval, where it comes from


def goal_sentence(answer: GoalAnswer) -> str:
    """Return the answer in one sentence."""
    goal = answer.goal
    if not answer.is_reached:
        return f"`{goal.text}` cannot be reached with {counted(answer.num_gpus, 'GPU')}: {answer.nearest}"
    money = f" and {usd(answer.usd.value)}" if answer.usd else ""
    limits = []
    if goal.days is not None:
        limits.append(f"within {calendar(goal.days)}")
    if goal.usd is not None:
        limits.append(f"for at most {usd(goal.usd)}")
    gpus = counted(answer.num_gpus, "GPU")
    if not limits:
        takes = "takes" if answer.num_gpus == 1 else "take"
        return f"{gpus} {takes} {calendar(answer.days.value)}{money}"
    expected = f"{calendar(answer.days.value)}{money} are expected"
    fewest = "is enough to finish" if answer.num_gpus == 1 else "are the fewest that finish"
    sentence = f"{gpus} {fewest} {' '.join(limits)}: {expected}"
    if answer.probability is None:
        return f"{sentence}."
    sentence += f", and the probability of reaching the goal is {percent(answer.probability)}."
    return sentence + _likely(answer)


def _likely(answer: GoalAnswer) -> str:
    """Say which number of GPUs reaches the goal almost surely, if that is another one."""
    if answer.fewest_likely is None:
        return " No number of the cluster's GPUs reaches it with 90 %."
    if answer.fewest_likely == answer.num_gpus:
        return ""
    return f" {counted(answer.fewest_likely, 'GPU')} reach it with at least 90 %."


def goal_rows(answer: GoalAnswer) -> list[Row]:
    """Return one row per quantity."""
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
    rows.append(_row("productive time", answer.effective_share, percent))
    return rows


def option_rows(answer: GoalAnswer) -> list[list[str]]:
    """Return a row per number of GPUs, with the columns of `OPTIONS`."""
    return [
        [
            number(option.num_gpus),
            calendar(option.days.value),
            usd(option.usd.value) if option.usd else "unknown",
            seconds(option.step_time_s),
            option.layout,
            percent(option.probability) if option.probability is not None else "unknown",
            _reached(answer, option),
        ]
        for option in answer.options
    ]


def _reached(answer: GoalAnswer, option: GoalOption) -> str:
    """Return whether the number of GPUs is expected to reach the goal, or that it does so with the fewest GPUs, etc."""
    if not option.is_reached:
        return "no"
    if not answer.is_reached:
        return "yes"
    kinds = {"fewest": answer.num_gpus, "cheapest": answer.cheapest, "fastest": answer.fastest}
    named = [kind for kind, number_of_kind in kinds.items() if number_of_kind == option.num_gpus]
    return ", ".join(named) or "yes"


def goal_text(answer: GoalAnswer, style: TextStyle) -> list[str]:
    """Return the lines for the terminal."""
    lines = [style.bold("The goal"), *style.wrapped(goal_sentence(answer))]
    lines += text_table(
        ["", "expected", "interval", "from"], [list(row) for row in goal_rows(answer)], style=style, flexible=[3]
    )
    if len(answer.options) > 1:
        lines += ["", "Other numbers of GPUs"]
        lines += text_table(list(OPTIONS), option_rows(answer), style=style, flexible=[4])
    for note in (INTERVALS, *answer.notes):
        lines += style.wrapped(note)
    return lines


def short(value: float) -> str:
    """Format a number with at most three significant digits: `30`, `12.5`, `1,234`."""
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10 and value != round(value):
        return f"{value:.1f}"
    return f"{value:.3g}"


def calendar(days: float) -> str:
    """Format a duration in hours or days: `4.8 hours`, `29.9 days`."""
    return f"{short(days)} days" if days >= 2 else f"{short(days * 24)} hours"


def _energy(mwh: float) -> str:
    return f"{short(mwh)} MWh" if mwh >= 1 else f"{short(mwh * 1000)} kWh"


def _carbon(tonnes: float) -> str:
    return f"{short(tonnes)} t CO2e" if tonnes >= 1 else f"{short(tonnes * 1000)} kg CO2e"


def usd(value: float) -> str:
    """Format an amount of money: `$1.23M`, `$45,600`."""
    if value >= 1e9:
        return f"${value / 1e9:.3g}B"
    if value >= 1e6:
        return f"${value / 1e6:.3g}M"
    digits = -2 if value >= 10_000 else 0
    return f"${round(value, digits):,.0f}"


def _row(name: str, value: GoalEstimate, written: Callable[[float], str]) -> Row:
    low, high = written(value.low), written(value.high)
    unit = high.partition(" ")[2]
    if unit and low.endswith(f" {unit}"):
        low = low.removesuffix(f" {unit}")
    return name, written(value.value), f"{low} to {high}", value.source
