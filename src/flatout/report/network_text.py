"""Word what another network does to the step and to the bill. In: a `NetworkAnswer`. Out: lines for a terminal."""

from __future__ import annotations

from flatout.records.network import NetworkAnswer, NetworkBill
from flatout.report.goal_text import usd
from flatout.report.phrases import counted
from flatout.report.terminal import TextStyle
from flatout.units import percent, seconds

_NAMES = {"fat-tree": "fat-tree", "rail": "rail-optimised network"}
AS_FAST = 0.005  # smaller differences in step time do not count


def network_lines(answer: NetworkAnswer, style: TextStyle) -> list[str]:
    """Return the network, its effect on the step, and its price."""
    return [
        style.bold("The network"),
        *(line for text in network_sentences(answer) for line in style.wrapped(text, indent="  ", label="")),
    ]


def network_sentences(answer: NetworkAnswer) -> list[str]:
    """Return the sentences that the text and the page show."""
    sentences = [f"{_name(answer)}: {_parts(answer.bill)}.", _step(answer)]
    sentences.append(_price(answer))
    if answer.slower_usd_per_year is not None and answer.usd_per_gpu_hour is not None and _changes_step(answer):
        slower = answer.slower_usd_per_year
        word = "longer" if slower > 0 else "shorter"
        sentences.append(
            f"In a year of training, the {word} steps are worth {usd(abs(slower))} of GPU time, at"
            f" ${answer.usd_per_gpu_hour:.2f} per GPU-hour."
        )
    if answer.bill.note:
        sentences.append(f"Note: {answer.bill.note}.")
    return sentences


def _changes_step(answer: NetworkAnswer) -> bool:
    return abs(answer.step_time_s / answer.full_step_time_s - 1.0) >= AS_FAST


def _name(answer: NetworkAnswer) -> str:
    if answer.shape:
        return f"A {answer.fabric} of {' x '.join(map(str, answer.shape))} nodes"
    ratio = f" oversubscribed {answer.oversubscription:g} to 1" if answer.oversubscription > 1 else ""
    return f"A {_NAMES[answer.fabric]}{ratio}, {counted(answer.leaf_nodes or 1, 'node')} per leaf switch"


def _parts(bill: NetworkBill) -> str:
    switches = "1 switch" if bill.num_switches == 1 else f"{bill.num_switches:,} switches"
    return (
        f"{switches} and {counted(bill.num_links, 'link')}, {usd(bill.typical_usd)}"
        f" ({usd(bill.low_usd)} to {usd(bill.high_usd)})"
    )


def _price(answer: NetworkAnswer) -> str:
    saved = answer.full_bill.typical_usd - answer.bill.typical_usd
    full = f"the fat-tree without oversubscription ({_parts(answer.full_bill)})"
    if saved == 0:
        return f"To buy, it costs as much as {full}; adapters are not counted."
    word = "less" if saved > 0 else "more"
    return f"To buy, it costs {usd(abs(saved))} {word} than {full}; adapters are not counted."


def _step(answer: NetworkAnswer) -> str:
    full = seconds(answer.full_step_time_s)
    if not _changes_step(answer):
        return f"The best layout's step is as long as on a fat-tree without oversubscription, {full}."
    more = answer.step_time_s / answer.full_step_time_s - 1.0
    word = "longer" if more > 0 else "shorter"
    return (
        f"The best layout's step is {seconds(answer.step_time_s)}, {percent(abs(more))} {word} than the {full} of the"
        " best layout on a fat-tree without oversubscription."
    )
