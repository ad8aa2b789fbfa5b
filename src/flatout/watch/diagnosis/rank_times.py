"""A time of each rank, again and again, compared before a slowdown and since.

In: the seconds of all ranks at some steps, such as their wait for batches. Out: each rank's median before and since,
once there are enough values: on a busy machine single values differ by more than many slowdowns.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

import msgspec

MOST_KEPT = 200  # enough of before and since for slowdowns that are small next to the noise
LEAST_BEFORE, MOST_BEFORE = 3, 20  # values before a slowdown that are compared with
# The standard error of the median since a slowdown is at most this share of the slowdown. A rank's time "grew" or "did
# not" at half and a quarter of the slowdown (see `causes`), so that a larger error could exchange the two.
MOST_ERROR = 0.2
_MAD_TO_SD = 1.4826
_MEDIAN_TO_MEAN_SD = 1.2533  # standard error of a median, relative to that of a mean
OfRanks = Mapping[int, float]  # seconds per step


class TimesBeforeAndSince(msgspec.Struct, frozen=True, kw_only=True):
    before_s: OfRanks
    since_s: OfRanks


UNKNOWN = TimesBeforeAndSince(before_s={}, since_s={})


class RankTimes:
    """The last values, by step."""

    def __init__(self) -> None:
        self._of_step: OrderedDict[int, OfRanks] = OrderedDict()

    def add(self, step: int, of_ranks: OfRanks) -> None:
        self._of_step[step] = of_ranks
        while len(self._of_step) > MOST_KEPT:
            self._of_step.popitem(last=False)

    def clear(self) -> None:
        self._of_step.clear()

    def compared(self, first_step: int, slower_s: float) -> TimesBeforeAndSince:
        """Return the medians before `first_step` and since; `UNKNOWN` if there are too few values."""
        before = [each for step, each in self._of_step.items() if step < first_step][-MOST_BEFORE:]
        since = [each for step, each in self._of_step.items() if step >= first_step]
        if len(before) < LEAST_BEFORE or len(since) < num_needed(before, since, slower_s):
            return UNKNOWN
        return TimesBeforeAndSince(before_s=_medians(before), since_s=_medians(since))


def num_needed(before: Sequence[OfRanks], since: Sequence[OfRanks], slower_s: float) -> int:
    """Return how many values it takes until the medians since are known to a share of the slowdown."""
    sd_s = max(_sd_s(before), _sd_s(since))
    return max(math.ceil((_MEDIAN_TO_MEAN_SD * sd_s / (MOST_ERROR * slower_s)) ** 2), 1)


def _sd_s(values: Sequence[OfRanks]) -> float:
    """Return the spread of the rank whose values differ most, from one to the next, so that a trend adds nothing."""
    if len(values) < 2:
        return 0.0
    differences = [median(abs(after[rank] - before[rank]) for before, after in pairwise(values)) for rank in values[0]]
    return _MAD_TO_SD * max(differences) / math.sqrt(2)


def _medians(values: Sequence[OfRanks]) -> OfRanks:
    return {rank: median(each[rank] for each in values) for rank in values[0]}
