"""The comparison of buying with renting as text for a terminal."""

from __future__ import annotations

from flatout.records.buying import BuyOrRent
from flatout.records.cost import Estimate
from flatout.report.cost_text import money
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import percent

_VERDICTS = {
    "buy": "buying costs less",
    "rent": "renting costs less",
    "undecided": "undecided: which costs less depends on where the inputs are between their bounds",
    "unknown": "which costs less is unknown",
}


def buying_text(result: BuyOrRent, *, style: TextStyle) -> str:
    """Return the costs of owning, both totals, the break-even and what is assumed or missing."""
    title = f"{counted(result.num_gpus, 'GPU')} for {result.life_months / 12:g} years: {_VERDICTS[result.verdict]}"
    lines = [*style.wrapped(style.bold(title)), ""]
    rows = [["price", _amount(result.price), "", "as given"]]
    rows += [[cost.item, "", _amount(cost.per_year), _or_reason(cost.per_year, cost.source)] for cost in result.costs]
    if result.residual_value.value:
        rows.append(["residual value", f"-{_amount(result.residual_value)}", "", "as given"])
    lines += text_table(["owning", result.currency, "per year", "source"], rows, style=style, flexible=[3])
    lines.append("")
    rows = [
        ["per working GPU-hour", _amount(result.own_per_gpu_hour), _amount(result.rent_per_gpu_hour)],
        ["in total, as of the first day", _amount(result.own_total), _amount(result.rent_total)],
    ]
    lines += [*text_table([result.currency, "buying", "renting"], rows, style=style, flexible=[1, 2]), ""]
    lines += _break_even(result, style)
    if result.spare_per_year is not None:
        items = ", ".join(result.not_counted)
        spare = f"{money(result.spare_per_year)} {result.currency} per year"
        lines += style.wrapped(f"Buying still costs less if what is not counted ({items}) costs less than {spare}.")
    lines += [line for note in result.notes for line in style.wrapped(note, label="note: ")]
    lines += ["", f"next: flatout cost buy {style.clean(result.path)} --json"]
    return "\n".join(lines)


def _break_even(result: BuyOrRent, style: TextStyle) -> list[str]:
    """Say from which utilisation and which month on buying costs less."""
    utilisation, month = result.break_even_utilisation, result.break_even_month
    if utilisation.value is None:
        text = f"break-even utilisation: unknown: {utilisation.reason}"
    elif utilisation.value > 1:
        text = "break-even utilisation: none, renting costs less even if the GPUs work all the time"
    else:
        text = f"break-even utilisation: {percent(utilisation.value)}{_between(utilisation, 100, ' %')}"
        if result.utilisation is not None:
            text += f", given: {percent(result.utilisation)}"
    lines = style.wrapped(text)
    if month.value is None:
        return lines + style.wrapped(f"break-even month: none or unknown: {month.reason}")
    return lines + style.wrapped(f"break-even month: {month.value:.0f}{_between(month, 1, '')}")


def _between(estimate: Estimate, scale: float, unit: str) -> str:
    if estimate.low is None or estimate.low == estimate.high:
        return ""
    if estimate.high is None:
        return f" (from {estimate.low * scale:.0f}{unit}, and none if the inputs favour renting)"
    return f" ({estimate.low * scale:.0f} to {estimate.high * scale:.0f}{unit})"


def _or_reason(estimate: Estimate, source: str) -> str:
    return source if estimate.value is not None else estimate.reason


def _amount(estimate: Estimate) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "unknown"
    if estimate.low == estimate.high:
        return money(estimate.value)
    return f"{money(estimate.value)} ({money(estimate.low)}-{money(estimate.high)})"
