"""Find slow ranks, rails and pairs among the measured pairs, by the rule for peers.

In: the measurements between pairs, and the host of each rank. Out: what is slower than its peers, the widest cause
first: a rail (the adapters at one position in every host), a rank, then single pairs among the rest, so that a slow
rank is not reported once for each of its partners. Pairs within a host are compared with each other only, and so are
pairs between hosts. Fewer than four peers are not compared.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from flatout.probe.ceilings.pairs import NAMES
from flatout.records.ceilings import Measurement, PeerDifference

# A pair must be slower by this share at least. Copies between GPUs of a kind differ by a few per cent, and one of
# several paths that is lost costs far more.
PAIR_SHARE = 0.1
Rule = Callable[[Mapping[str, float], float], Mapping[str, float]]


class LinkDifferences(NamedTuple):
    differences: list[PeerDifference]
    num_compared: dict[str, int]


class _Pair(NamedTuple):
    source: int
    target: int
    measurement: Measurement


def slow_links(
    measurements: Sequence[Measurement], hosts: Sequence[str], outliers: Rule, min_peers: int
) -> LinkDifferences:
    """Return what is slow. `outliers` returns the peers that differ by a share: name -> value / median - 1."""
    differences: list[PeerDifference] = []
    num_compared: dict[str, int] = {}
    for name in NAMES:
        by_place: dict[str, list[_Pair]] = defaultdict(list)
        for one in measurements:
            if one.name == name:
                source, target = one.ranks
                place = "within a host" if hosts[source] == hosts[target] else "between hosts"
                by_place[place].append(_Pair(source, target, one))
        for place, pairs in by_place.items():
            compared = _Compared(f"{name} {place}", pairs, outliers, min_peers)
            if place == "between hosts":
                compared.rails(hosts)
            compared.ranks()
            compared.pairs()
            differences += compared.differences
            num_compared |= compared.num_compared
    return LinkDifferences(differences, num_compared)


class _Compared:
    """The pairs of one measurement and place, without those that a slow rail or rank explains."""

    def __init__(self, what: str, pairs: list[_Pair], outliers: Rule, min_peers: int) -> None:
        self._what, self._left = what, pairs
        self._outliers, self._min_peers = outliers, min_peers
        self.differences: list[PeerDifference] = []
        self.num_compared: dict[str, int] = {}

    def rails(self, hosts: Sequence[str]) -> None:
        """Compare the pairs of equal positions in their hosts, by position."""
        position = {rank: hosts[:rank].count(host) for rank, host in enumerate(hosts)}
        rails: dict[str, list[_Pair]] = defaultdict(list)
        for pair in self._left:
            if position[pair.source] == position[pair.target]:
                ranks = [rank for rank, place in position.items() if place == position[pair.source]]
                rails[f"rail {position[pair.source]} (ranks {', '.join(map(str, ranks))})"].append(pair)
        slow = self._compare("rails", rails)
        gone = {rank for rail in slow for pair in rails[rail] for rank in pair[:2]}
        self._left = [pair for pair in self._left if not {pair.source, pair.target} & gone]

    def ranks(self) -> None:
        """Compare the ranks by the median over their partners: one slow partner does not make a rank slow."""
        by_rank: dict[int, list[_Pair]] = defaultdict(list)
        for pair in self._left:
            by_rank[pair.source].append(pair)
            by_rank[pair.target].append(pair)
        named = {f"rank {rank}": pairs for rank, pairs in sorted(by_rank.items())}
        slow = {int(name.removeprefix("rank ")) for name in self._compare("ranks", named)}
        self._left = [pair for pair in self._left if not {pair.source, pair.target} & slow]

    def pairs(self) -> None:
        self._compare("pairs", {f"rank {pair.source} to rank {pair.target}": [pair] for pair in self._left})

    def _compare(self, kind: str, peers: Mapping[str, Sequence[_Pair]]) -> list[str]:
        """Record the peers that are slower than the others, and return their names."""
        what = f"{self._what}, {kind}"
        if len(peers) < self._min_peers:
            return []
        self.num_compared[what] = len(peers)
        seconds = {name: statistics.median(pair.measurement.seconds for pair in pairs) for name, pairs in peers.items()}
        rates = {name: statistics.median(pair.measurement.value for pair in pairs) for name, pairs in peers.items()}
        usual = statistics.median(rates.values())
        slow = [name for name, by in self._outliers(seconds, PAIR_SHARE).items() if by > 0]
        unit = next(iter(peers.values()))[0].measurement.unit
        for name in slow:
            self.differences.append(
                PeerDifference(
                    name=what, peer=name, value=rates[name], usual=usual, by=rates[name] / usual - 1, unit=unit
                )
            )
        return slow
