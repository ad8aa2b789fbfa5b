"""What a share of a GPU delivers, and whether two commands gain from sharing: `SharingResult` -> text."""

from __future__ import annotations

from collections.abc import Iterator

from flatout.records.sharing import GpuSlice, PairSharing, SharingResult
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import bytes_per_s, flops_per_s, percent, seconds

_KINDS = {"mig": "a MIG instance", "mps": "a share by MPS", "hami": "a share by HAMi", "whole": "no share"}
_WORKS = {"matmul": "matrix multiplication", "memory_copy": "copying in memory"}


def sharing_text(sharing: SharingResult, *, style: TextStyle) -> str:
    """Return the shares that were delivered, or the verdict on two commands."""
    lines = [style.bold(_headline(sharing)), *style.wrapped(_slice(sharing.gpu_slice)), ""]
    if sharing.pair is not None:
        lines += _pair(sharing.pair, style)
    else:
        lines += _delivered(sharing, style)
    runs = f"{sharing.num_repeats} runs each, in the order {sharing.order}"
    lines += ["", *style.wrapped(f"{runs}; the range is that of the runs.")]
    if sharing.pair is None:
        lines += ["", "next: flatout bench --share --out share.json; flatout schedule replay JOBS --sharing share.json"]
    return "\n".join(lines)


def _headline(sharing: SharingResult) -> str:
    pair = sharing.pair
    if pair is None:
        return f"Shares of {sharing.device}"
    low, high = min(pair.sums), max(pair.sums)
    both = f"both together get {low:.2f} to {high:.2f} times as much done as one after the other"
    match pair.verdict:
        case "gains":
            return f"sharing pays: {both}"
        case "loses":
            return f"sharing does not pay: {both}"
    return f"undecided: {both}"


def _slice(own: GpuSlice) -> str:
    asked = "" if own.asked_share is None else f", {percent(own.asked_share)} of the compute units"
    return f"{_KINDS[own.kind]}{asked} ({own.source})"


def _delivered(sharing: SharingResult, style: TextStyle) -> list[str]:
    rows = list(_rows(sharing))
    lines = text_table(["work", "together with", "asked", "delivered", "range"], rows, style=style, flexible=[0, 1])
    if sharing.whole_share is not None:
        asked = sharing.gpu_slice.asked_share
        of_asked = "" if asked is None else f", and {percent(asked)} was asked for"
        text = f"alone, matrix multiplication reaches {percent(sharing.whole_share)} of the whole GPU{of_asked}"
        lines += ["", *style.wrapped(text)]
    return lines


def _rows(sharing: SharingResult) -> Iterator[list[str]]:
    for work, rate in sharing.alone.items():
        text = flops_per_s(rate) if work == "matmul" else bytes_per_s(rate)
        yield [_WORKS[work], "nothing", "-", text, "-"]
    for each in sharing.delivered:
        others = f"{each.num_processes - 1} x {_WORKS[each.beside]}"
        span = f"{percent(each.low)} to {percent(each.high)}"
        yield [_WORKS[each.work], others, percent(each.asked_share), percent(each.delivered_share), span]


def _pair(pair: PairSharing, style: TextStyle) -> list[str]:
    rows = [
        [name, seconds(alone_s), seconds(alone_s / share), percent(share)]
        for name, alone_s, share in zip(pair.commands, pair.alone_s, pair.shares, strict=True)
        if share > 0
    ]
    what = "per step" if pair.unit == "step" else "of the whole command"
    header = ["command", f"alone, {what}", "together", "of its speed alone"]
    lines = text_table(header, rows, style=style, flexible=[0])
    if pair.unit == "command":
        lines += ["", *style.wrapped("Fewer than 20 steps of both were seen together: starts count, too.")]
    return lines
