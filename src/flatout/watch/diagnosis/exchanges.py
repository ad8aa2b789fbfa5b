"""Follow the timed exchanges of gradients. In: heartbeats, again and again. Out: each rank's exposed time, by step.

A rank keeps only its last timed exchange, and ranks note it a moment apart, so an exchange is complete when all ranks
have shown it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from statistics import median

from flatout.keep.heartbeats import HeartbeatSample
from flatout.watch.diagnosis.rank_times import RankTimes, TimesBeforeAndSince

FIRST_STEP = 20  # earlier exchanges belong to the warm-up
_MOST_PARTIAL = 8


class Exchanges:
    """The exchanges of one job; another attempt begins again."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._partial: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._complete = RankTimes()
        self._behind = RankTimes()
        self._last_complete = 0

    def add(self, samples: Sequence[HeartbeatSample]) -> None:
        """Add the last timed exchange of each rank."""
        names = tuple(sample.name for sample in samples)
        if names != self._names:
            self._names = names
            self._partial.clear()
            self._complete.clear()
            self._behind.clear()
            self._last_complete = 0
        for sample in samples:
            exchange = sample.exchange
            if exchange is None or exchange.num_ranks != len(samples) or exchange.step <= self._last_complete:
                continue
            of_ranks = self._partial.setdefault(exchange.step, {})
            of_ranks[sample.rank or 0] = exchange.exposed_s
            if len(of_ranks) == len(samples) and exchange.step >= FIRST_STEP:
                self._complete.add(exchange.step, of_ranks)
                self._behind.add(exchange.step, _behind(of_ranks))
                self._last_complete = exchange.step
        while len(self._partial) > _MOST_PARTIAL:
            self._partial.popitem(last=False)

    def compared(self, first_step: int, slower_s: float) -> TimesBeforeAndSince:
        """Return each rank's exposed seconds per step before a slowdown and since; `UNKNOWN` if it is too early."""
        return self._complete.compared(first_step + 1, slower_s)

    def compared_behind(self, first_step: int, slower_s: float) -> TimesBeforeAndSince:
        """Return how much later than its peers each rank came, before a slowdown and since; `UNKNOWN` as above.

        What makes a step long for all of them, such as the wait of one for a core, is not in it. So on a busy host it
        is known after fewer exchanges than the waits themselves.
        """
        return self._behind.compared(first_step + 1, slower_s)


def _behind(exposed_s: Mapping[int, float]) -> dict[int, float]:
    """Return how much later each rank came to an exchange than the ranks in the median; negative: earlier."""
    if len(exposed_s) == 2:
        (one, one_s), (other, other_s) = exposed_s.items()
        return {one: other_s - one_s, other: one_s - other_s}
    usual_s = median(exposed_s.values())
    return {rank: usual_s - own_s for rank, own_s in exposed_s.items()}
