"""Ceilings as text for a terminal: the best rate of each kind, outliers, and what was not measured."""

from __future__ import annotations

import statistics
from collections.abc import Container, Iterable, Mapping, Sequence

from flatout.records.ceilings import Ceilings, CollectiveFit, LoadedLink, Measurement
from flatout.report.pairs_text import PAIRS, pair_lines
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import bytes_per_s, flops_per_s, num_bytes, number, percent, rank_ranges, seconds

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
_PINNED = ("host_to_device_pinned", "device_to_host_pinned")
_MOST_NOT_MEASURED = 12
_BUSY_CORES = 0.2


def ceilings_text(ceilings: Ceilings, *, style: TextStyle) -> str:
    """Return rates with their spread (the interquartile range as a share of the median)."""
    single = [each for each in ceilings.measurements if each.name not in (*_COLLECTIVES, *PAIRS)]
    notes_of_name: dict[str, set[str]] = {}
    for measurement in single:
        notes_of_name.setdefault(measurement.name, set()).add(measurement.note)
    # Notes stand in the table if they distinguish measurements of one name, and otherwise once below it.
    noted_in_table = {name for name, notes in notes_of_name.items() if len(notes) > 1}
    lines = [
        *_header(ceilings, style),
        *_wrong_results(ceilings, style),
        *_table(single, noted_in_table, style),
        *_collectives(ceilings, style),
        *pair_lines(ceilings, style),
        *_notes([each for each in single if each.name not in noted_in_table], style),
        *_per_watt(single, style),
        *_links(single, style),
        "",
        *_peers(ceilings, style),
        *_not_measured(ceilings.not_measured, style),
    ]
    return "\n".join(lines)


def _header(ceilings: Ceilings, style: TextStyle) -> list[str]:
    devices = ceilings.device
    if ceilings.is_gpu:
        devices = f"{ceilings.num_devices} x {ceilings.device}"
    elif ceilings.num_devices != 1:
        devices = f"{ceilings.device}, {ceilings.num_devices} ranks"
    lines = [
        *style.wrapped(f"{devices}; {ceilings.software}"),
        f"{len(ceilings.measurements)} measurements in {seconds(ceilings.took_s)}, repetitions interleaved",
    ]
    busy_cores = ceilings.cores_busy_by_others
    if busy_cores is not None and busy_cores >= _BUSY_CORES:
        note = f"other processes kept {busy_cores:.1f} cores busy, so these are the ceilings of a busy machine"
        lines += style.wrapped(note, label="note: ")
    return lines


def _wrong_results(ceilings: Ceilings, style: TextStyle) -> list[str]:
    if not ceilings.wrong:
        return []
    lines = ["", style.bold("WRONG RESULTS: their speeds are omitted")]
    for wrong in ceilings.wrong:
        text = f"{wrong.name} {wrong.what}, {_ranks(wrong.ranks)}: {wrong.reason}"
        lines += style.wrapped(text, indent="  ", label="")
    return lines


def _table(measurements: Sequence[Measurement], noted: Container[str], style: TextStyle) -> list[str]:
    if not measurements:
        return []
    rows = [_row(group, is_noted=group[0].name in noted) for group in _grouped(measurements)]
    return ["", *text_table(["ceiling", "of", "rate", "spread", "n"], rows, style=style, flexible=[1])]


def _notes(measurements: Iterable[Measurement], style: TextStyle) -> list[str]:
    notes = dict.fromkeys((each.name, each.note) for each in measurements if each.note)
    lines = [""] if notes else []
    for name, note in notes:
        lines += style.wrapped(note, label=f"{name}: ")
    return lines


def _per_watt(measurements: Sequence[Measurement], style: TextStyle) -> list[str]:
    """Return a line per operand type whose power was measured, as a median over the GPUs."""
    lines = []
    for group in _grouped([each for each in measurements if each.power_w is not None]):
        rate = statistics.median(each.rate_per_w or 0.0 for each in group)
        watts = statistics.median(each.power_w or 0.0 for each in group)
        seconds = statistics.median(each.power_seconds or 0.0 for each in group)
        text = f"{flops_per_s(rate)} per W at {number(watts)} W, over {number(seconds)} s"
        lines += style.wrapped(text, label=f"{group[0].name} {group[0].dtype}: ")
    return ["", *lines] if lines else []


def _not_measured(reasons: Mapping[str, str], style: TextStyle) -> list[str]:
    if not reasons:
        return []
    lines = ["", style.bold("Not measured")]
    for what, why in list(reasons.items())[:_MOST_NOT_MEASURED]:
        lines += style.wrapped(why, indent="  ", label=f"{what}: ")
    num_more = len(reasons) - _MOST_NOT_MEASURED
    if num_more > 0:
        lines.append(f"  and {num_more} more: --json")
    return lines


def _grouped(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Group the measurements that several ranks made in the same way."""
    groups: dict[tuple[object, ...], list[Measurement]] = {}
    for each in measurements:
        key = (each.name, each.dtype, each.shape, each.size, each.threads, each.backend, each.note)
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def _row(group: Sequence[Measurement], *, is_noted: bool) -> list[str]:
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
    if is_noted and first.note:
        words.append(first.note)
    if len(group) > 1:
        words.append(f"each of {len(group)} ranks, median")
    value = statistics.median(each.value for each in group)
    spread = statistics.median(each.spread / each.value for each in group)
    return [first.name, ", ".join(filter(None, words)), _rate(value, first.unit), percent(spread), str(first.n)]


def _rate(value: float, unit: str) -> str:
    if unit == "FLOP/s":
        return flops_per_s(value)
    return bytes_per_s(value) if unit == "B/s" else f"{number(round(value))} /s"


def _collectives(ceilings: Ceilings, style: TextStyle) -> list[str]:
    """Show the fit and the highest measured rate of each curve."""
    curves: dict[tuple[str, str | None, tuple[int, ...]], list[Measurement]] = {}
    for each in ceilings.measurements:
        if each.name in _COLLECTIVES:
            curves.setdefault((each.name, each.group, each.ranks), []).append(each)
    if not curves:
        return []
    fits = {(fit.name, fit.group, fit.ranks): fit for fit in ceilings.fits}
    rows = []
    for (name, group, ranks), curve in curves.items():
        best = max(curve, key=lambda each: each.value)
        rows.append(
            [
                name,
                f"{group}: {rank_ranges(ranks)}",
                *_fit_cells(fits.get((name, group or "", ranks))),
                f"{bytes_per_s(best.value)} at {num_bytes(best.size or 0)}",
                percent(best.spread / best.value),
            ]
        )
    header = ["collective", "ranks", "latency", "bandwidth", "off by", "best", "spread"]
    title = f"Collectives on {ceilings.backend}: bus bandwidth as nccl-tests defines it, and the fitted line"
    return [
        "",
        *style.wrapped(title),
        *text_table(header, rows, style=style, flexible=[1, 5]),
        *_latencies(ceilings, style),
    ]


def _fit_cells(fit: CollectiveFit | None) -> tuple[str, str, str]:
    if fit is None:
        return "-", "-", "-"
    return seconds(fit.latency_s), bytes_per_s(fit.bandwidth_bytes_per_s), percent(fit.median_error)


def _latencies(ceilings: Ceilings, style: TextStyle) -> list[str]:
    """Say whether a latency on GPUs is the time of the GPUs or of the host that starts a call."""
    if not ceilings.is_gpu:
        return []
    lines: list[str] = []
    queued_ahead = [fit for fit in ceilings.fits if fit.timed == "queued_ahead"]
    if queued_ahead:
        text = "GPU time, with calls queued ahead"
        calls_s = [fit.call_s for fit in queued_ahead if fit.call_s is not None]
        if calls_s:
            text += (
                f"; called from Python one after the other, the smallest size takes {seconds(min(calls_s))} to "
                f"{seconds(max(calls_s))}: the cost for a job whose host is not ahead"
            )
        lines += style.wrapped(text, label="latency: ")
    as_called = [fit for fit in ceilings.fits if fit.timed == "as_called"]
    if as_called:
        names = ", ".join(dict.fromkeys(fit.name for fit in as_called))
        text = (
            f"of {names} as called from Python, one after the other: mostly the host's time to start a call, which "
            "costs nothing in a job whose host is ahead"
        )
        lines += style.wrapped(text, label="latency: ")
    return lines


def _links(measurements: Iterable[Measurement], style: TextStyle) -> list[str]:
    """Show each GPU's PCIe link as read while copies ran: equal links on one line, slow ones first."""
    link_of_rank: dict[int, LoadedLink | None] = {}
    for each in measurements:
        if each.name in _PINNED:
            rank = each.ranks[0]
            link_of_rank[rank] = link_of_rank.get(rank) or each.pcie
    ranks_of_link: dict[LoadedLink | None, list[int]] = {}
    for rank, link in link_of_rank.items():
        ranks_of_link.setdefault(link, []).append(rank)
    lines = [""] if ranks_of_link else []
    for link in sorted(ranks_of_link, key=_urgency):
        lines += style.wrapped(_link(link), label=f"PCIe link under load, {_ranks(ranks_of_link[link])}: ")
    return lines


def _urgency(link: LoadedLink | None) -> int:
    """Return a key that sorts slow links first and unknown ones last."""
    if link is None:
        return 2
    return 0 if link.is_below else 1


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
        for peer in ceilings.peers:
            rate, usual = _rate(peer.value, peer.unit), _rate(peer.usual, peer.unit)
            text = f"{rate}, {peer.by:+.0%} compared with the usual {usual}"
            lines += style.wrapped(text, indent="  ", label=f"{peer.name}, {peer.peer}: ")
        return lines
    if ceilings.num_peers:
        return style.wrapped(f"Peers: none differs from the others ({len(ceilings.num_peers)} comparisons)")
    if ceilings.peers_compared:
        return style.wrapped(f"Peers: not compared, {next(iter(ceilings.peers_compared.values()))}")
    return style.wrapped("Peers: nothing to compare")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {rank_ranges(ranks)}"
