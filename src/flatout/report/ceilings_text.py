"""Ceilings as text for a terminal: the best rate of each kind, outliers, and what was not measured."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from flatout.records.ceilings import Ceilings, LoadedLink, Measurement
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import bytes_per_s, flops_per_s, num_bytes, number, percent, rank_ranges, seconds

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
_PINNED = ("host_to_device_pinned", "device_to_host_pinned")
_MOST_NOT_MEASURED = 12
_BUSY_CORES = 0.2


def ceilings_text(ceilings: Ceilings, *, style: TextStyle) -> str:
    """Return rates with their spread (the interquartile range as a share of the median)."""
    who = f"{ceilings.num_devices} x {ceilings.device}" if ceilings.is_gpu else ceilings.device
    ranks = "" if ceilings.is_gpu or ceilings.num_devices == 1 else f", {ceilings.num_devices} ranks"
    lines = [
        *style.wrapped(f"{who}{ranks}; {ceilings.software}"),
        f"{len(ceilings.measurements)} measurements in {seconds(ceilings.took_s)}, repetitions interleaved",
    ]
    others = ceilings.cores_busy_by_others
    if others is not None and others >= _BUSY_CORES:
        told = f"other processes kept {others:.1f} cores busy, so these are the ceilings of a busy machine"
        lines += style.wrapped(told, label="note: ")
    if ceilings.wrong:
        lines += ["", style.bold("WRONG RESULTS: their speeds are omitted")]
        for wrong in ceilings.wrong:
            lines += style.wrapped(
                f"{wrong.name} {wrong.what}, {_ranks(wrong.ranks)}: {wrong.reason}", indent="  ", label=""
            )
    simple = [one for one in ceilings.measurements if one.name not in _COLLECTIVES]
    told_apart = {one.name for one in simple if len({other.note for other in simple if other.name == one.name}) > 1}
    if simple:
        rows = [_row(group, noted=group[0].name in told_apart) for group in _grouped(simple)]
        lines += ["", *text_table(["ceiling", "of", "rate", "spread", "n"], rows, style=style, flexible=[1])]
    lines += _collectives(ceilings, style)
    notes = dict.fromkeys((one.name, one.note) for one in simple if one.note and one.name not in told_apart)
    if notes:
        lines.append("")
        for name, note in notes:
            lines += style.wrapped(note, label=f"{name}: ")
    lines += _links(simple, style)
    lines += ["", *_peers(ceilings, style)]
    if ceilings.not_measured:
        lines += ["", style.bold("Not measured")]
        for what, why in list(ceilings.not_measured.items())[:_MOST_NOT_MEASURED]:
            lines += style.wrapped(why, indent="  ", label=f"{what}: ")
        left = len(ceilings.not_measured) - _MOST_NOT_MEASURED
        lines += [f"  and {left} more: --json"] if left > 0 else []
    return "\n".join(lines)


def _grouped(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Group the measurements that several ranks made in the same way."""
    found: dict[tuple[object, ...], list[Measurement]] = {}
    for one in measurements:
        key = (one.name, one.dtype, one.shape, one.size, one.threads, one.backend, one.note)
        found.setdefault(key, []).append(one)
    return list(found.values())


def _row(group: Sequence[Measurement], *, noted: bool) -> list[str]:
    first = group[0]
    words = [first.dtype or ""]
    if first.shape:
        words.append(" x ".join(map(str, first.shape)))
    elif first.size:
        words.append(num_bytes(first.size))
    if first.threads:
        words.append(f"{first.threads} {'thread' if first.threads == 1 else 'threads'}")
    if first.backend in ("numpy", "Pillow", "torchvision"):
        words.append(first.backend)
    if noted and first.note:
        words.append(first.note)
    if len(group) > 1:
        words.append(f"each of {len(group)} ranks, median")
    value = statistics.median(one.value for one in group)
    spread = statistics.median(one.spread / one.value for one in group)
    return [first.name, ", ".join(filter(None, words)), _rate(value, first.unit), percent(spread), str(first.n)]


def _rate(value: float, unit: str) -> str:
    if unit == "FLOP/s":
        return flops_per_s(value)
    return bytes_per_s(value) if unit == "B/s" else f"{number(round(value))} /s"


def _collectives(ceilings: Ceilings, style: TextStyle) -> list[str]:
    """Show the fit and the highest measured rate of each curve."""
    curves: dict[tuple[str, str | None, tuple[int, ...]], list[Measurement]] = {}
    for one in ceilings.measurements:
        if one.name in _COLLECTIVES:
            curves.setdefault((one.name, one.group, one.ranks), []).append(one)
    if not curves:
        return []
    fits = {(fit.name, fit.group, fit.ranks): fit for fit in ceilings.fits}
    rows = []
    for key, curve in curves.items():
        best = max(curve, key=lambda one: one.value)
        fit = fits.get((key[0], key[1] or "", key[2]))
        rows.append(
            [
                key[0],
                f"{key[1]}: {rank_ranges(key[2])}",
                "-" if fit is None else seconds(fit.latency_s),
                "-" if fit is None else bytes_per_s(fit.bandwidth_bytes_per_s),
                "-" if fit is None else percent(fit.median_error),
                f"{bytes_per_s(best.value)} at {num_bytes(best.size or 0)}",
                percent(best.spread / best.value),
            ]
        )
    header = ["collective", "ranks", "latency", "bandwidth", "off by", "best", "spread"]
    return [
        "",
        *style.wrapped(
            f"Collectives on {ceilings.backend}: bus bandwidth as nccl-tests defines it, and the fitted line"
        ),
        *text_table(header, rows, style=style, flexible=[1, 5]),
        *_latencies(ceilings, style),
    ]


def _latencies(ceilings: Ceilings, style: TextStyle) -> list[str]:
    """Say whose time a latency on GPUs is: that of the GPUs, or that of the host that starts a call."""
    lines: list[str] = []
    for timed in ("queued_ahead", "as_called") if ceilings.is_gpu else ():
        fits = [fit for fit in ceilings.fits if fit.timed == timed]
        if not fits:
            continue
        calls = [fit.call_s for fit in fits if fit.call_s is not None]
        if timed == "queued_ahead":
            told = "GPU time, with calls queued ahead"
            if calls:
                told += (
                    f"; as called from Python, one after the other, the smallest size takes {seconds(min(calls))} to "
                    f"{seconds(max(calls))}: the cost for a job whose host is not ahead"
                )
        else:
            names = ", ".join(dict.fromkeys(fit.name for fit in fits))
            told = (
                f"of {names} as called from Python, one after the other: mostly the host's time to start a call, which "
                "costs nothing in a job whose host is ahead"
            )
        lines += style.wrapped(told, label="latency: ")
    return lines


def _links(measurements: Iterable[Measurement], style: TextStyle) -> list[str]:
    """Show each GPU's PCIe link as read while copies ran: equal links on one line, slow ones first."""
    told: dict[int, LoadedLink | None] = {}
    for one in measurements:
        if one.name in _PINNED:
            told[one.ranks[0]] = told.get(one.ranks[0]) or one.pcie
    alike: dict[LoadedLink | None, list[int]] = {}
    for rank, link in told.items():
        alike.setdefault(link, []).append(rank)
    lines = [""] if alike else []
    for link, ranks in sorted(alike.items(), key=lambda one: 2 if one[0] is None else 0 if one[0].is_below else 1):
        lines += style.wrapped(_link(link), label=f"PCIe link under load, {_ranks(ranks)}: ")
    return lines


def _link(link: LoadedLink | None) -> str:
    if link is None:
        return "unknown: neither sysfs nor NVML shows it while copies run"
    now = f"{link.speed_gt_per_s:g} GT/s x {link.width}"
    if link.best_speed_gt_per_s is None or link.best_width is None:
        return f"{now}; the maximum is unknown ({link.source})"
    best = f"{link.best_speed_gt_per_s:g} GT/s x {link.best_width}"
    if link.is_below:
        return f"{now}, BELOW the {best} that both ends support ({link.source})"
    return f"{now}, the maximum that both ends support ({link.source})"


def _peers(ceilings: Ceilings, style: TextStyle) -> list[str]:
    if ceilings.peers:
        lines = [style.bold("Different from their peers")]
        for one in ceilings.peers:
            told = f"{_rate(one.value, one.unit)}, {one.by:+.0%} compared with the usual {_rate(one.usual, one.unit)}"
            lines += style.wrapped(told, indent="  ", label=f"{one.name}, {one.peer}: ")
        return lines
    if ceilings.num_peers:
        return style.wrapped(f"Peers: none differs from the others ({len(ceilings.num_peers)} comparisons)")
    if ceilings.peers_compared:
        return style.wrapped(f"Peers: not compared, {next(iter(ceilings.peers_compared.values()))}")
    return style.wrapped("Peers: nothing to compare")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}"
