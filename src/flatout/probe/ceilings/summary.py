"""Turn the raw repetitions of all ranks into Ceilings: medians, spreads, fits, peers, and errors."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec
import numpy as np

from flatout.probe.ceilings.bus import COLLECTIVES
from flatout.probe.ceilings.energy import Sustained
from flatout.probe.ceilings.fit import fitted
from flatout.probe.ceilings.pairs import NAMES as PAIRS
from flatout.probe.ceilings.raw import Raw, RawBenchmark, what_of
from flatout.probe.ceilings.slow_links import slow_links
from flatout.records.ceilings import Ceilings, CollectiveFit, LoadedLink, Measurement, PeerDifference, WrongResult

# A smaller difference between peers matters to no job.
PEER_SHARE = 0.05
# Device time cannot exceed the time timed by the host; if it does by more than this factor, it is not used.
_NO_LONGER = 1.1
Rule = Callable[[Mapping[str, float]], Mapping[str, float]]
RuleForShare = Callable[[Mapping[str, float], float], Mapping[str, float]]


def ceilings_of(
    raw: Raw, *, took_s: float, outliers: RuleForShare, min_peers: int, cores_busy_by_others: float | None = None
) -> Ceilings:
    """Summarise the repetitions.

    `outliers` returns the peers that differ by at least a share of the median: name -> value / median - 1.
    """
    measurements: list[Measurement] = []
    wrong: list[WrongResult] = []
    for index in range(len(raw.benchmarks[0])):
        by_rank = {rank: benchmarks[index] for rank, benchmarks in enumerate(raw.benchmarks)}
        for ranks, ones in _teams(by_rank).items():
            bad = {rank: one.wrong for rank, one in zip(ranks, ones, strict=True) if one.wrong}
            if bad:
                wrong.append(
                    WrongResult(
                        name=ones[0].name,
                        what=what_of(ones[0].labels),
                        ranks=_wrong_ranks(ones[0], ranks, bad),
                        reason=str(next(iter(bad.values()))),
                    )
                )
            elif all(one.seconds for one in ones):
                measurements.append(_measurement(ranks, ones, raw))
    between = [one for one in measurements if one.name in PAIRS]
    alone = [one for one in measurements if one.name not in PAIRS]
    peers = _peers(alone, lambda values: outliers(values, PEER_SHARE), min_peers)
    links = slow_links(between, raw.hosts, outliers, min_peers)
    return Ceilings(
        host=raw.hosts[0],
        taken_at=datetime.now(UTC).isoformat(timespec="seconds"),
        took_s=took_s,
        device=raw.devices[0] if len(set(raw.devices)) == 1 else ", ".join(sorted(set(raw.devices))),
        num_devices=len(raw.devices),
        is_gpu=raw.is_gpu,
        backend=raw.backend,
        hosts=raw.hosts,
        software=raw.software,
        measurements=tuple(measurements),
        fits=tuple(_fits(measurements)),
        peers=(*peers.differences, *links.differences),
        num_peers=peers.num_compared | links.num_compared,
        peers_compared=peers.described | {what: f"{number} peers" for what, number in links.num_compared.items()},
        wrong=tuple(wrong),
        cores_busy_by_others=cores_busy_by_others,
        not_measured=raw.not_measured,
    )


def _wrong_ranks(one: RawBenchmark, ranks: tuple[int, ...], bad: Mapping[int, str]) -> tuple[int, ...]:
    """Return the ranks to name: both ends of a link, else those whose result was wrong."""
    return tuple(sorted(one.labels.get("route", ranks))) if one.name in PAIRS else tuple(bad)


def _teams(by_rank: Mapping[int, RawBenchmark]) -> dict[tuple[int, ...], list[RawBenchmark]]:
    """Return the ranks that worked together: the members of a group, else each rank with repetitions or an error."""
    found: dict[tuple[int, ...], list[RawBenchmark]] = {}
    for rank, one in by_rank.items():
        members = one.labels.get("members")
        if members is not None:
            if members and rank == members[0]:
                found[tuple(members)] = [by_rank[member] for member in members]
        elif one.seconds or one.wrong:
            found[(rank,)] = [one]
    return found


def _measurement(ranks: tuple[int, ...], ones: list[RawBenchmark], raw: Raw) -> Measurement:
    """Summarise a measurement; in a group, a repetition is the mean of its ranks' times, as in nccl-tests."""
    num = min(len(one.seconds) for one in ones)
    as_called = [statistics.fmean(one.seconds[index] for one in ones) for index in range(num)]
    queued = _queued(ones)
    is_ahead = 2 * len(queued) >= max(num, 1)  # otherwise the host was mostly too slow
    is_queued = is_ahead and statistics.median(queued) <= _NO_LONGER * statistics.median(as_called)
    seconds = queued if is_queued else as_called
    rates = [ones[0].work / value for value in seconds]
    labels = ones[0].labels
    power = msgspec.convert(labels.get("power"), Sustained | None)
    low, high = np.percentile(rates, [25, 75])
    return Measurement(
        name=ones[0].name,
        value=ones[0].work / statistics.median(seconds),  # so that value and seconds are of the same repetition
        unit=ones[0].unit,  # type: ignore[arg-type]
        spread=float(high - low),
        device=raw.devices[ranks[0]],
        ranks=tuple(labels.get("route", ranks)),
        n=len(seconds),
        seconds=statistics.median(seconds),
        timed="queued_ahead" if is_queued else "as_called",
        seconds_as_called=statistics.median(as_called),
        checked=ones[0].checked,
        size=labels.get("size"),
        dtype=labels.get("dtype"),
        shape=tuple(labels["shape"]) if labels.get("shape") else None,
        group=labels.get("group"),
        threads=labels.get("threads"),
        backend=labels.get("backend", ""),
        note=labels.get("note", ""),
        pcie=msgspec.convert(labels.get("pcie"), LoadedLink | None),
        power_w=power.watts if power is not None else None,
        power_seconds=power.seconds if power is not None else None,
        rate_per_w=power.rate_per_w if power is not None else None,
    )


def _queued(ones: list[RawBenchmark]) -> list[float]:
    """Return the device times of the repetitions in which every rank was ahead of its GPU."""
    rounds = zip(*(one.queued_seconds for one in ones), strict=False)
    return [statistics.fmean(values) for values in rounds if None not in values]


def _fits(measurements: list[Measurement]) -> list[CollectiveFit]:
    curves: dict[tuple[str, str, tuple[int, ...]], list[Measurement]] = {}
    for one in measurements:
        if one.name in COLLECTIVES and one.group is not None:
            curves.setdefault((one.name, one.group, one.ranks), []).append(one)
    found = []
    for (name, group, ranks), curve in curves.items():
        line = fitted([one.value * one.seconds for one in curve], [one.seconds for one in curve])
        if line is not None:
            found.append(
                CollectiveFit(
                    name=name,
                    group=group,
                    ranks=ranks,
                    latency_s=line[0],
                    bandwidth_bytes_per_s=line[1],
                    median_error=line[2],
                    num_sizes=len(curve),
                    timed=curve[0].timed,
                    call_s=curve[0].seconds_as_called or curve[0].seconds,
                    backend=curve[0].backend,
                )
            )
    return found


class _Peers(NamedTuple):
    differences: list[PeerDifference]
    num_compared: dict[str, int]  # what was compared -> number of peers
    described: dict[str, str]


def _peers(measurements: list[Measurement], outliers: Rule, min_peers: int) -> _Peers:
    """Compare ranks that did the same work, and groups of one shape; a curve is compared only at its largest size."""
    alike: dict[tuple[Any, ...], dict[str, Measurement]] = {}
    for one in measurements:
        key = (one.name, one.dtype, one.shape, one.group, one.threads, one.note)
        if one.name in COLLECTIVES:
            who = "ranks " + ", ".join(map(str, one.ranks))
            before = alike.setdefault(key, {}).get(who)
            if before is None or (one.size or 0) > (before.size or 0):
                alike[key][who] = one
        else:
            alike.setdefault((*key, one.size), {})[f"rank {one.ranks[0]}"] = one
    differences: list[PeerDifference] = []
    num_compared: dict[str, int] = {}
    described: dict[str, str] = {}
    for group in alike.values():
        if len(group) < 2:
            continue
        first = next(iter(group.values()))
        what = " ".join(filter(None, [first.name, first.dtype, first.group]))
        if len(group) < min_peers:
            described[what] = f"{len(group)} peers, but {min_peers} are needed"
            continue
        num_compared[what] = len(group)
        described[what] = f"{len(group)} peers"
        usual = statistics.median(one.value for one in group.values())
        # Times are compared, not rates: a rate cannot fall below 0, so a slow peer among few could never be an outlier.
        for who in outliers({who: one.seconds for who, one in group.items()}):
            one = group[who]
            differences.append(
                PeerDifference(
                    name=what, peer=who, value=one.value, usual=usual, by=one.value / usual - 1, unit=one.unit
                )
            )
    return _Peers(differences, num_compared, described)
