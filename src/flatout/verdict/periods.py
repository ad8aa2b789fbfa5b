"""Find how often work returns that lengthens some steps: epochs, checkpoints, collections, or what no hook explains.

In: the numbers of the steps that have the work, for each trial. Out: a `Period`, and the steps at which it is due. Work
that does not return regularly has only a rate; what was seen once has neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

MIN_PERIOD = 2  # steps
MIN_AGREEING_SHARE = 0.6  # of the gaps between occurrences
MIN_DUE_SHARE = 0.8  # of the steps at which an exact period has the work due, and that have it
MIN_EXPLAINED_SHARE = 0.3  # of the occurrences: two works of one size share them, chance explains fewer
MIN_OCCURRENCES = 3  # two give a gap, and only a third one confirms it
_MIN_TRIALS = 2
_NUM_FOLLOWING = 3  # periods are tried that lead from an occurrence to one of the next three


class Period(msgspec.Struct, frozen=True, kw_only=True):
    """The number of steps from one occurrence to the next."""

    steps: float  # mean
    is_exact: bool  # always the same number, so that each step has a place in the period

    @property
    def per_step(self) -> float:
        return 1.0 / self.steps

    def is_spanned_by(self, num_steps: int) -> bool:
        """Whether a window of this length holds a whole period."""
        return num_steps >= self.steps


def gaps_within(numbers: Sequence[Numbers]) -> list[int]:
    """Return the steps from each occurrence to the next in the same trial."""
    return [int(gap) for of_trial in numbers for gap in np.diff(of_trial)]


def period_of_gaps(gaps: Sequence[int], *, fewest: int) -> Period | None:
    """Return the period on which most gaps agree within a step; None if they do not, or if there are too few."""
    if len(gaps) < fewest:
        return None
    values = np.asarray(gaps)
    is_near = np.abs(values[:, None] - values[None, :]) <= 1
    best = int(np.lexsort((values, is_near.sum(axis=1)))[-1])
    agreeing = values[is_near[best]]
    is_agreed = len(agreeing) >= max(fewest, MIN_AGREEING_SHARE * len(values))
    if not is_agreed or values[best] < MIN_PERIOD:
        return None
    return Period(steps=float(agreeing.mean()), is_exact=bool(agreeing.min() == agreeing.max()))


class Schedule(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An exact period, and the measured steps of each trial at which the work is due."""

    period: Period
    due: list[Flags]


def common_schedule(numbers: Sequence[Numbers], has_work: Sequence[Flags], is_open: Sequence[Flags]) -> Schedule | None:
    """Return the schedule that all trials share, whose steps are numbered from the start of the job.

    Only steps that `is_open` count: in others, other work may hide this one. A number is evidence only if several
    trials have the step, and nearly all of them the work: else chance puts it there.
    """
    number, is_hit, counts = np.concatenate(numbers), np.concatenate(has_work), np.concatenate(is_open)
    hits = _numbers_in_common(number, is_hit)
    best: tuple[int, int, int] | None = None  # hits, period, phase
    for steps in _possible_periods([hits]):
        phases = number % steps
        num_hits = np.bincount(phases, weights=is_hit, minlength=steps)
        num_due = np.bincount(phases, weights=counts, minlength=steps)
        phase = int(num_hits.argmax())
        is_confirmed = num_hits[phase] >= MIN_OCCURRENCES and (hits % steps == phase).sum() > 1
        explains = num_hits[phase] >= MIN_EXPLAINED_SHARE * is_hit.sum()
        if not is_confirmed or not explains or num_hits[phase] < MIN_DUE_SHARE * num_due[phase]:
            continue
        if best is None or num_hits[phase] > best[0]:
            best = int(num_hits[phase]), steps, phase
    if best is None:
        return None
    _, steps, phase = best
    due = [np.asarray(of_trial % steps == phase) for of_trial in numbers]
    return Schedule(period=Period(steps=float(steps), is_exact=True), due=due)


def _numbers_in_common(number: Numbers, is_hit: Flags) -> Numbers:
    """Return the numbers of steps that at least two trials have, and in which nearly all of these have the work."""
    distinct, place = np.unique(number, return_inverse=True)
    num_trials = np.bincount(place)
    num_hits = np.bincount(place, weights=is_hit)
    return distinct[(num_trials >= _MIN_TRIALS) & (num_hits >= MIN_DUE_SHARE * num_trials)]


def separate_schedule(
    numbers: Sequence[Numbers], has_work: Sequence[Flags], is_open: Sequence[Flags]
) -> Schedule | None:
    """Return the schedule whose period all trials share, while the phase of each is its own.

    Only a trial in which the work is due at least twice says something about the period.
    """
    occurrences = [of_trial[is_hit] for of_trial, is_hit in zip(numbers, has_work, strict=True)]
    best: tuple[int, Schedule] | None = None
    for steps in _possible_periods(occurrences):
        due = [_due_in(of_trial, is_hit, steps) for of_trial, is_hit in zip(numbers, has_work, strict=True)]
        num_due = num_hits = num_long = 0
        for flags, is_hit, counts in zip(due, has_work, is_open, strict=True):
            if flags.sum() > 1:
                num_due += int((flags & counts).sum())
                num_hits += int((flags & is_hit).sum())
                num_long += int(is_hit.sum())
        if num_hits < max(MIN_OCCURRENCES, MIN_DUE_SHARE * num_due, MIN_EXPLAINED_SHARE * num_long):
            continue
        if best is None or num_hits > best[0]:
            best = num_hits, Schedule(period=Period(steps=float(steps), is_exact=True), due=due)
    return best[1] if best is not None else None


def _due_in(number: Numbers, is_hit: Flags, steps: int) -> Flags:
    """Return the steps of a trial at the phase that most of its occurrences have; none if it has no occurrence."""
    if not is_hit.any():
        return np.zeros(len(number), dtype=np.bool_)
    phase = int(np.bincount(number[is_hit] % steps).argmax())
    return np.asarray(number % steps == phase)


def _possible_periods(occurrences: Sequence[Numbers]) -> list[int]:
    """Return the differences between occurrences that are close to each other in order, the longest first."""
    periods: set[int] = set()
    for of_trial in occurrences:
        for following in range(1, _NUM_FOLLOWING + 1):
            periods.update((of_trial[following:] - of_trial[:-following]).tolist())
    return sorted((steps for steps in periods if steps >= MIN_PERIOD), reverse=True)
