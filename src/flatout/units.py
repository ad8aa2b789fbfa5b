"""Format numbers with their units in Flatout's uniform style."""

from __future__ import annotations

from collections.abc import Iterable

NS_PER_S = 1_000_000_000
# Prices beyond those of any market: more likely of a node or a month, or in another currency.
MOST_USD_PER_GPU_HOUR = 1_000.0
MOST_USD_PER_KWH = 10.0


def seconds(value_s: float) -> str:
    """Format a duration with three significant digits and a suitable unit: `184 ms`, `1.61 s`, `12.3 us`."""
    magnitude = abs(value_s)
    if magnitude >= 0.9995:
        return f"{_three_digits(value_s)} s"
    if magnitude >= 0.9995e-3:
        return f"{_three_digits(value_s * 1e3)} ms"
    if magnitude >= 0.9995e-6:
        return f"{_three_digits(value_s * 1e6)} us"
    if magnitude > 0:
        return f"{_three_digits(value_s * 1e9)} ns"
    return "0 s"


def percent(share: float) -> str:
    """Format a fraction as a percentage: `55 %`, `4.2 %`."""
    value = share * 100
    return f"{value:.0f} %" if abs(value) >= 10 else f"{value:.1f} %"


def num_bytes(value: float) -> str:
    """Format a size in binary units: `96 MiB`, `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{_three_digits(value)} {unit}"
        value /= 1024
    return f"{_three_digits(value)} TiB"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:,.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}"


def bytes_per_s(value: float) -> str:
    """Format a rate in decimal units, the way links and disks are rated: `21.3 GB/s`."""
    for unit in ("B/s", "kB/s", "MB/s", "GB/s"):
        if abs(value) < 1000:
            return f"{_three_digits(value)} {unit}"
        value /= 1000
    return f"{_three_digits(value)} TB/s"


def flops_per_s(value: float) -> str:
    """Format a rate of floating-point operations: `67.0 TFLOP/s`."""
    for unit in ("FLOP/s", "kFLOP/s", "MFLOP/s", "GFLOP/s", "TFLOP/s"):
        if abs(value) < 1000:
            return f"{_three_digits(value)} {unit}"
        value /= 1000
    return f"{_three_digits(value)} PFLOP/s"


def number(value: float) -> str:
    """Format a number without a unit: integers in full, others with three digits: `2,685`, `0.83`, `1.4e+09`."""
    magnitude = abs(value)
    if isinstance(value, int) or (value == int(value) and magnitude < 1e9):
        return f"{int(value):,}"
    if 0.01 <= magnitude < 1e6:
        return _three_digits(value)
    return f"{value:.3g}"


def rank_ranges(ranks: Iterable[int], limit: int = 8) -> str:
    """Format ranks as ranges, `0, 1, 5, 7-9`; after `limit` ranges, only the total follows: `... (512 in total)`."""
    ordered = sorted(set(ranks))
    ranges: list[list[int]] = []
    for rank in ordered:
        if ranges and rank == ranges[-1][1] + 1:
            ranges[-1][1] = rank
        else:
            ranges.append([rank, rank])
    texts = []
    for first, last in ranges:
        # Two neighbours read better as a list, so that `7, 8` is not `7-8`.
        is_long = last - first > 1
        texts.append(f"{first}-{last}" if is_long else ", ".join(str(rank) for rank in sorted({first, last})))
    shown = ", ".join(texts[:limit])
    if len(texts) <= limit:
        return shown
    return f"{shown}, ... ({len(ordered):,} in total)"
