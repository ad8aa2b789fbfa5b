"""Recognise steps that grow (or shrink) within each epoch and fall back at its end, every epoch again.

In: the time of each step, and the steps in which a loader ran out of batches. Out: a `Sawtooth`, or None. Steps that
grow once are a drift, not a sawtooth. Without two complete epochs, or where the pattern is not that of the epochs (a
sampler that orders batches within groups), the steps in which the times fall back are found in the times themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from flatout.records.job_log import Sawtooth

MIN_TOOTH_STEPS = 12
MIN_CHANGE = 0.2  # from the first to the last quarter of a tooth, as a share of the shorter one
MIN_CORRELATION = 0.6  # between the place in a tooth and the step time, by ranks
MIN_AGREEING_TEETH = 0.75  # share of the teeth that change in the same direction
MIN_EPOCHS = 2
MIN_TEETH_UNMARKED = 3  # where no loader ended: one reset could be anything
MIN_RESET = 0.5  # share of the range of step times by which they change back at once
MIN_COVERED = 0.5  # share of the counted steps that are in teeth, where no loader ended
MAX_GAP_DEVIATION = 0.1  # share of the period, where no loader ended
_RESET_STEPS = 4  # steps on either side of a reset, whose medians are compared
_USUAL_RANGE = (10, 90)  # percentiles

Times = NDArray[np.float64]


def find_sawtooth(number: NDArray[np.int64], time_s: Times, ends_epoch: NDArray[np.bool_] | None) -> Sawtooth | None:
    """Return the sawtooth of a job's steps, None if there is none.

    `time_s` is the time of each step without its known stalls, NaN where it does not count; `ends_epoch` says in which
    steps a loader ran out of batches, None if that was not recorded.
    """
    if ends_epoch is not None:
        starts = np.flatnonzero(ends_epoch).tolist()
        if number[0] == 0 and (not starts or starts[0] > 0):
            starts = [0, *starts]
        if len(starts) > MIN_EPOCHS:
            of_epochs = _with_teeth(number, time_s, starts, is_epoch=True)
            if of_epochs is not None:
                return of_epochs
    for is_growing in (True, False):
        starts = _resets(time_s, is_growing=is_growing)
        if len(starts) > MIN_TEETH_UNMARKED and _is_regular(starts) and _covers_the_job(starts, time_s):
            unmarked = _with_teeth(number, time_s, starts, is_epoch=False)
            if unmarked is not None:
                return unmarked
    return None


def _with_teeth(number: NDArray[np.int64], time_s: Times, starts: Sequence[int], *, is_epoch: bool) -> Sawtooth | None:
    """Return the sawtooth whose complete teeth are between these columns; None if too few of them are alike."""
    teeth = [_Tooth(time_s[low:high]) for low, high in pairwise(starts)]
    teeth = [tooth for tooth in teeth if tooth.num_steps >= MIN_TOOTH_STEPS]
    growing = [tooth for tooth in teeth if tooth.grows]
    shrinking = [tooth for tooth in teeth if tooth.shrinks]
    alike = max(growing, shrinking, key=len)
    fewest = MIN_EPOCHS if is_epoch else MIN_TEETH_UNMARKED
    if len(alike) < fewest or len(alike) < MIN_AGREEING_TEETH * len(teeth):
        return None
    return Sawtooth(
        starts=tuple(int(number[start]) for start in starts),
        period_steps=_period(starts),
        num_teeth=len(alike),
        first_s=float(np.mean([tooth.first_s for tooth in alike])),
        last_s=float(np.mean([tooth.last_s for tooth in alike])),
        mean_s=float(np.mean([tooth.mean_s for tooth in alike])),
        is_epoch=is_epoch,
    )


class _Tooth:
    """The steps from one start to the next: the median of their first and of their last quarter."""

    def __init__(self, time_s: Times) -> None:
        counted = time_s[~np.isnan(time_s)]
        self.num_steps = len(counted)
        if self.num_steps < MIN_TOOTH_STEPS:
            return
        quarter = self.num_steps // 4
        self.first_s = float(np.median(counted[:quarter]))
        self.last_s = float(np.median(counted[-quarter:]))
        self.mean_s = float(counted.mean())
        self._correlation = _rank_correlation(counted)

    @property
    def grows(self) -> bool:
        return self.last_s - self.first_s >= MIN_CHANGE * self.first_s and self._correlation >= MIN_CORRELATION

    @property
    def shrinks(self) -> bool:
        return self.first_s - self.last_s >= MIN_CHANGE * self.last_s and self._correlation <= -MIN_CORRELATION


def _rank_correlation(time_s: Times) -> float:
    """Return the correlation of the ranks of the times with their places; 0 if all times are equal."""
    _, rank = np.unique(time_s, return_inverse=True)
    if rank.max() == 0:
        return 0.0
    return float(np.corrcoef(rank, np.arange(len(rank)))[0, 1])


def _resets(time_s: Times, *, is_growing: bool) -> list[int]:
    """Return the columns at which times that grow fall back at once, or at which times that shrink rise at once."""
    counted = np.flatnonzero(~np.isnan(time_s))
    if len(counted) < 2 * MIN_TOOTH_STEPS:
        return []
    times = time_s[counted]
    windows = np.lib.stride_tricks.sliding_window_view(times, _RESET_STEPS)
    medians = np.median(windows, axis=1)
    back = medians[:-_RESET_STEPS] - medians[_RESET_STEPS:]  # of the steps before a place, less that of those after it
    if not is_growing:
        back = -back
    low, high = np.percentile(times, _USUAL_RANGE)
    resets: list[int] = []
    for place in np.flatnonzero(back >= MIN_RESET * (high - low)).tolist() if high > low else ():
        if resets and place - resets[-1] <= 2 * _RESET_STEPS:
            resets[-1] = max(resets[-1], place, key=lambda candidate: float(back[candidate]))
        else:
            resets.append(place)
    return [int(counted[place + _RESET_STEPS]) for place in resets]


def _is_regular(starts: Sequence[int]) -> bool:
    gaps = np.diff(starts)
    period = float(np.median(gaps))
    agrees = np.abs(gaps - period) <= max(_RESET_STEPS / 2, MAX_GAP_DEVIATION * period)
    return bool(agrees.mean() >= MIN_AGREEING_TEETH)


def _covers_the_job(starts: Sequence[int], time_s: Times) -> bool:
    is_counted = ~np.isnan(time_s)
    num_covered = int(is_counted[starts[0] : starts[-1] + _period(starts)].sum())
    return num_covered >= MIN_COVERED * int(is_counted.sum())


def _period(starts: Sequence[int]) -> int:
    return round(float(np.median(np.diff(starts))))
