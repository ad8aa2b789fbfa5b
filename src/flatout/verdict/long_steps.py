"""Find work in the step times alone: steps that are far longer than the others, and the period in which they return.

In: the windows of all trials, and the steps that hooks explain. Out: a `Work` for each size of long step: a collection
and an epoch's end are not one work because neither has a hook. Long steps that return exactly have a period; those that
come at any place have a rate; one that was seen once in a window has neither, so it is part of no cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from flatout.verdict.periods import (
    MIN_DUE_SHARE,
    Flags,
    Period,
    common_schedule,
    gaps_within,
    period_of_gaps,
    separate_schedule,
)
from flatout.verdict.window import Floats, Window
from flatout.verdict.work import MAX_SHARE_OF_STEPS, MIN_ABSENT, MIN_FOR_RATE, Work

LONG_STEP = 1.5  # in medians of the trial's steps
MIN_DEVIATIONS = 6.0
OTHER_SIZE = 2.0  # factor between two long steps, none in between, so that they are different work
MIN_OTHER_WORK = 3  # steps that are longer than the work in them explains, so that there is more work
MAX_SCHEDULES = 3  # of one size
MIN_COUNTED_SHARE = 0.75  # of the steps there are to an occurrence: a period that is shorter is only that of a burst
MOST_OF_STEPS = 0.75
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_LOW_QUANTILE = 0.25

_ByTrial = dict[int, Flags]


def works_without_hook(windows: Sequence[Window], is_explained: _ByTrial) -> list[Work]:
    """Return the work in long steps that no hook explains, the longest first."""
    is_open = {index: ~flags for index, flags in is_explained.items()}
    extra_s = _extra_of_rare(windows, is_open)
    works: list[Work] = []
    for shortest_s, longest_s in _sizes(extra_s):
        is_long = {
            index: (seconds >= shortest_s) & (seconds <= longest_s) & is_open[index]
            for index, seconds in extra_s.items()
        }
        hidden = _hidden_in(windows, is_open, longest_s)
        of_size, is_open = _works_of_one_size(windows, is_long, is_open)
        works += [_without_hidden(work, windows, hidden) for work in of_size]
    return works


def _hidden_in(windows: Sequence[Window], is_open: _ByTrial, extra_s: float) -> set[str]:
    """Return the arms whose steps differ so much, or are so long, that steps of this extra time are not long there."""
    seen_in = {window.arm for window in windows if extra_s > _least_extra_s(window.step_s[is_open[window.index]])}
    return {window.arm for window in windows} - seen_in


def _without_hidden(work: Work, windows: Sequence[Window], hidden: set[str]) -> Work:
    """Return the work without the arms in which it is hidden: there it is part of the regular step already."""
    having = {window.arm for window in windows if work.is_due[window.index].any()}
    return msgspec.structs.replace(work, absent_in=work.absent_in | (hidden - having))


def _extra_of_rare(windows: Sequence[Window], is_open: _ByTrial) -> dict[int, Floats]:
    """Return what each long step takes beyond its window's median step; 0 for the others.

    An arm in which they are not rare has none: they belong to its regular step, also in a window that has few of them.
    """
    extra_s = {window.index: _extra_s(window.step_s, is_open[window.index]) for window in windows}
    nothing = {window.index: np.zeros(window.num_steps) for window in windows}
    for arm in {window.arm for window in windows}:
        of_arm = [window for window in windows if window.arm == arm]
        if _are_usual(of_arm, extra_s, is_open):
            extra_s |= {window.index: nothing[window.index] for window in of_arm}
    return extra_s


def _are_usual(windows: Sequence[Window], extra_s: Mapping[int, Floats], is_open: _ByTrial) -> bool:
    """Whether more than a third of the steps of an arm's window are as long as its long ones, but not most of them.

    If most are, the machine may have been slow for the whole window.
    """
    long_s = [float(seconds) for window in windows for seconds in window.step_s[extra_s[window.index] > 0]]
    if not long_s:
        return False
    shortest_s = min(long_s)
    for window in windows:
        others_s = window.step_s[is_open[window.index]]
        num_as_long = int((others_s >= shortest_s).sum())
        if MAX_SHARE_OF_STEPS * len(others_s) < num_as_long < MOST_OF_STEPS * len(others_s):
            return True
    return False


def _extra_s(step_s: Floats, is_open: Flags) -> Floats:
    others = step_s[is_open]
    if not len(others):
        return np.zeros(len(step_s))
    middle_s = _median(others)
    extra_s = step_s - middle_s
    return np.where(is_open & (extra_s > _least_extra_beyond(middle_s, others)), extra_s, 0.0)


def _least_extra_s(step_s: Floats) -> float:
    """Return what a step must take beyond the median to be long; infinity without any."""
    if not len(step_s):
        return np.inf
    return _least_extra_beyond(_median(step_s), step_s)


def _least_extra_beyond(middle_s: float, step_s: Floats) -> float:
    spread_s = _NORMAL_MAD * _median(np.abs(step_s - middle_s))
    return max((LONG_STEP - 1) * middle_s, MIN_DEVIATIONS * spread_s)


def _median(values: Floats) -> float:
    """Return what `np.median` does, for values without a NaN. It is called for each trial each time that one ends."""
    ordered = np.sort(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return float(ordered[middle])
    return float(ordered[middle - 1] + ordered[middle]) / 2


def _sizes(extra_s: Mapping[int, Floats]) -> list[tuple[float, float]]:
    """Return the shortest and the longest step of each size, the largest size first."""
    values = np.sort(np.concatenate(list(extra_s.values()))) if extra_s else np.zeros(0)
    values = values[values > 0]
    if not len(values):
        return []
    groups = np.split(values, np.flatnonzero(values[1:] > OTHER_SIZE * values[:-1]) + 1)
    return [(float(group[0]), float(group[-1])) for group in reversed(groups)]


def _works_of_one_size(
    windows: Sequence[Window], is_long: _ByTrial, is_open: _ByTrial
) -> tuple[list[Work], dict[int, Flags]]:
    """Return the work in these long steps, and the steps that are not explained after it."""
    works: list[Work] = []
    still_open = dict(is_open)
    while len(works) < MAX_SCHEDULES and any(flags.any() for flags in is_long.values()):
        work = _scheduled_work(windows, is_long, still_open)
        if work is None or any(_is_part_of(work, earlier, is_long) for earlier in works):
            break
        works.append(work)
        is_left = _longer_than_usual(windows, work)
        is_long = {index: flags & (~work.is_due[index] | is_left[index]) for index, flags in is_long.items()}
        still_open = {index: flags & (~work.is_due[index] | is_left[index]) for index, flags in still_open.items()}
    rest = _unscheduled_work(windows, is_long)
    if rest is not None:
        works.append(rest)
        still_open = {index: flags & ~rest.is_due[index] for index, flags in still_open.items()}
    return works, still_open


def _is_part_of(work: Work, earlier: Work, is_long: _ByTrial) -> bool:
    """Whether a work is due only where an earlier one is, and most of these steps are not longer than that explains."""
    num_due = num_both = num_long = 0
    for index, is_due in work.is_due.items():
        num_due += int(is_due.sum())
        num_both += int((is_due & earlier.is_due[index]).sum())
        num_long += int((is_due & is_long[index]).sum())
    return num_both == num_due and num_long < MIN_DUE_SHARE * num_due


def _longer_than_usual(windows: Sequence[Window], work: Work) -> dict[int, Flags]:
    """Return the steps with the work that are far above the others with it, so that other work must be in them too."""
    is_left = {}
    for window in windows:
        is_due = work.is_due[window.index]
        is_usual = is_due & ~work.is_first[window.index]
        usual_s = float(np.quantile(window.step_s[is_usual], _LOW_QUANTILE)) if is_usual.any() else np.inf
        is_left[window.index] = is_usual & (window.step_s > LONG_STEP * usual_s)
    if sum(int(flags.sum()) for flags in is_left.values()) < MIN_OTHER_WORK:
        return {index: np.zeros(len(flags), dtype=np.bool_) for index, flags in is_left.items()}
    return is_left


def _scheduled_work(windows: Sequence[Window], is_long: _ByTrial, is_open: _ByTrial) -> Work | None:
    """Return the work with an exact period that explains most long steps."""
    numbers = [window.number for window in windows]
    flags = [is_long[window.index] for window in windows]
    counts = [is_open[window.index] for window in windows]
    is_numbered = all(window.is_numbered for window in windows)
    schedule = common_schedule(numbers, flags, counts) if is_numbered else None
    is_common = schedule is not None
    schedule = schedule or separate_schedule(numbers, flags, counts)
    if schedule is None:
        return None
    period = schedule.period
    is_due = {window.index: due for window, due in zip(windows, schedule.due, strict=True)}
    if not _is_kept(windows, is_long, is_due, period):
        return None
    arms = {window.arm for window in windows}
    return Work(
        kinds=("unknown",),
        is_due=is_due,
        is_first={w.index: _first_due(w, is_due[w.index], period, is_common=is_common) for w in windows},
        period=dict.fromkeys(arms, period),
        absent_in=frozenset(arm for arm in arms if _is_absent(windows, is_due, arm, period)),
    )


def _is_kept(windows: Sequence[Window], is_long: _ByTrial, is_due: _ByTrial, period: Period) -> bool:
    """Whether nearly all windows of the arms that have the work keep its schedule.

    Of two windows of one job, one may have as many long steps by chance, as where batches come late in bursts.
    """
    having = {window.arm for window in windows if (is_long[window.index] & is_due[window.index]).any()}
    num_hits = num_missed = 0
    for window in windows:
        hits = int((is_long[window.index] & is_due[window.index]).sum())
        num_hits += hits
        if window.arm in having and not hits:
            num_missed += int(window.num_steps // period.steps)
    return num_hits >= MIN_DUE_SHARE * (num_hits + num_missed)


def _is_absent(windows: Sequence[Window], is_due: _ByTrial, arm: str, period: Period) -> bool:
    """Whether a window of the arm would have held the work, and none does."""
    of_arm = [window for window in windows if window.arm == arm]
    if any(is_due[window.index].any() for window in of_arm):
        return False
    return any(period.is_spanned_by(window.num_steps) for window in of_arm)


def _first_due(window: Window, is_due: Flags, period: Period, *, is_common: bool) -> Flags:
    """Return the occurrence that may be the first in the job; without numbers, the first of several."""
    is_first = np.zeros(len(is_due), dtype=np.bool_)
    places = np.flatnonzero(is_due)
    if not len(places):
        return is_first
    is_early = window.number[places[0]] <= period.steps if is_common else len(places) > 1
    is_first[places[0]] = is_early
    return is_first


def _unscheduled_work(windows: Sequence[Window], is_long: _ByTrial) -> Work | None:
    """Return the long steps without an exact period: with a rate if they come at any place, else unknown."""
    num_long = sum(int(flags.sum()) for flags in is_long.values())
    if not num_long:
        return None
    absent = frozenset(arm for arm in {window.arm for window in windows} if _has_none(windows, is_long, arm))
    having = [window for window in windows if window.arm not in absent]
    period, is_random = _rate(windows, having, is_long, num_long)
    if period is not None and period.per_step > MAX_SHARE_OF_STEPS:
        return None
    return Work(
        kinds=("unknown",),
        is_due=is_long,
        is_first={index: np.zeros(len(flags), dtype=np.bool_) for index, flags in is_long.items()},
        period=dict.fromkeys({window.arm for window in windows}, period),
        absent_in=absent,
        is_random=is_random,
    )


def _rate(
    windows: Sequence[Window], having: Sequence[Window], is_long: _ByTrial, num_long: int
) -> tuple[Period | None, bool]:
    """Return how often long steps come, None if that is unknown, and whether they come at random."""
    counted = Period(steps=sum(window.num_steps for window in having) / num_long, is_exact=False)
    numbers = [window.number[is_long[window.index]] for window in having]
    period = period_of_gaps(gaps_within(numbers), fewest=2)
    in_bursts = period is not None and period.steps < MIN_COUNTED_SHARE * counted.steps
    if period is not None and not in_bursts:
        return period, False
    is_random = num_long >= MIN_FOR_RATE and _is_anywhere(windows, is_long)
    if is_random or _goes_on(windows, is_long):
        return counted, is_random
    return None, False


def _goes_on(windows: Sequence[Window], is_long: _ByTrial) -> bool:
    """Whether a window has several long steps in each of its halves, so that they do not belong to its beginning."""
    for window in windows:
        middle = window.num_steps // 2
        halves = is_long[window.index][:middle], is_long[window.index][middle:]
        if min(int(half.sum()) for half in halves) >= MIN_FOR_RATE:
            return True
    return False


def _has_none(windows: Sequence[Window], is_long: _ByTrial, arm: str) -> bool:
    """Whether an arm has no long step although the others have more than chance explains."""
    steps_of, long_of = {True: 0, False: 0}, {True: 0, False: 0}
    for window in windows:
        steps_of[window.arm == arm] += window.num_steps
        long_of[window.arm == arm] += int(is_long[window.index].sum())
    if long_of[True] or not steps_of[False]:
        return False
    return long_of[False] * steps_of[True] / steps_of[False] >= MIN_ABSENT


def _is_anywhere(windows: Sequence[Window], is_long: _ByTrial) -> bool:
    """Whether long steps come by chance: with numbers, other trials have the same steps, and there they are not long.

    Without numbers, one trial must hold several at irregular gaps.
    """
    if not all(window.is_numbered for window in windows):
        return any(flags.sum() >= MIN_FOR_RATE for flags in is_long.values())
    number = np.concatenate([window.number for window in windows])
    flags = np.concatenate([is_long[window.index] for window in windows])
    at_long = np.isin(number, number[flags])
    return bool(at_long.sum() >= 2 * flags.sum())
