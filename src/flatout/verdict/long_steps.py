"""Find work in the step times alone: steps that are far longer than the others, and the period in which they return.

In: the windows of all trials, and the steps that hooks explain. Out: a `Work` for each size of long step: a collection
and an epoch's end are not one work because neither has a hook. Long steps that return exactly have a period; those that
come at any place have a rate; one that was seen once in a window has neither, so it is part of no cost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
_LOW_QUANTILE = 0.25

_ByTrial = dict[int, Flags]


def works_without_hook(windows: Sequence[Window], is_explained: _ByTrial) -> list[Work]:
    """Return the work in long steps that no hook explains, the longest first."""
    is_open = {index: ~flags for index, flags in is_explained.items()}
    extra_s = {window.index: _extra_s(window.step_s, is_open[window.index]) for window in windows}
    works: list[Work] = []
    for shortest_s, longest_s in _sizes(extra_s):
        is_long = {
            index: (seconds >= shortest_s) & (seconds <= longest_s) & is_open[index]
            for index, seconds in extra_s.items()
        }
        of_size, is_open = _works_of_one_size(windows, is_long, is_open)
        works += of_size
    return works


def _extra_s(step_s: Floats, is_open: Flags) -> Floats:
    """Return what each long step takes beyond the median step; 0 for the others."""
    nothing = np.zeros(len(step_s))
    others = step_s[is_open]
    if not len(others):
        return nothing
    middle = float(np.median(others))
    spread = _NORMAL_MAD * float(np.median(np.abs(others - middle)))
    is_long = is_open & (step_s > max(LONG_STEP * middle, middle + MIN_DEVIATIONS * spread))
    if is_long.sum() > MAX_SHARE_OF_STEPS * len(others):
        return nothing
    return np.where(is_long, step_s - middle, nothing)


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
    arms = {window.arm for window in windows}
    return Work(
        kinds=("unknown",),
        is_due=is_due,
        is_first={w.index: _first_due(w, is_due[w.index], period, is_common=is_common) for w in windows},
        period=dict.fromkeys(arms, period),
        absent_in=frozenset(arm for arm in arms if _is_absent(windows, is_due, arm, period)),
    )


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
    numbers = [window.number[is_long[window.index]] for window in having]
    period = period_of_gaps(gaps_within(numbers), fewest=2)
    is_random = period is None and num_long >= MIN_FOR_RATE and _is_anywhere(windows, is_long)
    if is_random:
        period = Period(steps=sum(window.num_steps for window in having) / num_long, is_exact=False)
    return Work(
        kinds=("unknown",),
        is_due=is_long,
        is_first={index: np.zeros(len(flags), dtype=np.bool_) for index, flags in is_long.items()},
        period=dict.fromkeys({window.arm for window in windows}, period),
        absent_in=absent,
        is_random=is_random,
    )


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
