"""Word the measurements between pairs of ranks for a terminal: the usual rate or latency, and the slowest pair."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from flatout.records.ceilings import Ceilings, Measurement
from flatout.report.terminal import TextStyle
from flatout.report.text_table import text_table
from flatout.units import bytes_per_s, num_bytes, seconds

PAIRS = ("pair_send", "pair_round_trip", "peer_write", "peer_read")
_ROUND_TRIP = "pair_round_trip"


def pair_lines(ceilings: Ceilings, style: TextStyle) -> list[str]:
    """Return a table with a row for each measurement within hosts and between them; empty without pairs."""
    by_row: dict[tuple[str, str], list[Measurement]] = {}
    for each in ceilings.measurements:
        if each.name in PAIRS:
            by_row.setdefault((each.name, _place(ceilings, each)), []).append(each)
    if not by_row:
        return []
    rows = [_row(name, place, pairs) for (name, place), pairs in by_row.items()]
    title = (
        "Between two ranks, in each direction, while the other ranks exchange in pairs too; every element is checked"
    )
    header = ["measurement", "pairs", "usual", "slowest"]
    return ["", *style.wrapped(title), *text_table(header, rows, style=style, flexible=[1, 3])]


def _place(ceilings: Ceilings, pair: Measurement) -> str:
    if not ceilings.hosts:
        return ""
    hosts = {ceilings.hosts[rank] for rank in pair.ranks}
    return " within hosts" if len(hosts) == 1 else " between hosts"


def _row(name: str, place: str, pairs: Sequence[Measurement]) -> list[str]:
    slowest = max(pairs, key=lambda each: each.seconds)
    usual_s = statistics.median(each.seconds for each in pairs)
    usual = next(each for each in sorted(pairs, key=lambda each: each.seconds) if each.seconds >= usual_s)
    source, target = slowest.ranks
    link = "and" if name == _ROUND_TRIP else "to"
    size = num_bytes(pairs[0].size or 0)
    return [
        name,
        f"{len(pairs)}{place}, {size}",
        _value(usual),
        f"{_value(slowest)}: rank {source} {link} {target}",
    ]


def _value(pair: Measurement) -> str:
    """Return the rate, or of a round trip the time of one way."""
    return f"{seconds(pair.seconds / 2)} one way" if pair.name == _ROUND_TRIP else bytes_per_s(pair.value)
