"""Find the work that lengthens some steps of a job, and how often it returns: from hooks, and from the step times.

In: the windows of all trials, as the work belongs to the job. Out: a `Work` for each kind. Kinds that hooks saw in the
same steps (an epoch's end, its evaluation and its checkpoint) are one work. Steps that are long without a hook are a
work of the kind `unknown`. Where an arm has its own period, as with fewer evaluations, that holds for the arm.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.records.trial import SpellKind
from flatout.verdict.periods import (
    Flags,
    Numbers,
    Period,
    common_schedule,
    gaps_within,
    period_of_gaps,
    separate_schedule,
)
from flatout.verdict.window import Floats, Window

MAX_SHARE_OF_STEPS = 1 / 3  # work in more of the steps belongs to the regular step
MIN_COMMON_SHARE = 0.8  # of the steps of two kinds, so that they are one work
LONG_STEP = 1.5  # in medians of the trial's steps
MIN_DEVIATIONS = 6.0
_NORMAL_MAD = 1.4826  # standard deviation over median absolute deviation of a normal distribution
MIN_DIFFERENCE = 0.2  # of an arm's own period from the job's; below, it may be chance
MIN_ABSENT = 5.0  # occurrences that an arm should have had, so that having none means that it has no such work
MIN_FOR_RATE = 3
_LOW_QUANTILE = 0.25
MAX_WORKS_WITHOUT_HOOK = 3

# The first occurrence may include costs that do not return: the loader's first epoch, the first evaluation's memory.
_FROM_THE_START: frozenset[SpellKind] = frozenset({"epoch_end", "loader_start", "evaluation", "checkpoint"})


class Work(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One kind of work, or several that always come together."""

    kinds: tuple[SpellKind, ...]
    is_due: dict[int, Flags]  # by trial: the measured steps that have it
    is_first: dict[int, Flags]  # by trial: of these, the one that is the first in the job
    period: dict[str, Period | None]  # by arm; None: unknown
    absent_in: frozenset[str] = frozenset()  # arms that would have had it by now
    hook_s: dict[str, float] = {}  # by arm: median of what the hooks measured in a step
    is_random: bool = False  # it hits any trial, whatever its arm

    def num_seen(self, index: int) -> int:
        return int(self.is_due[index].sum())

    def per_step(self, arm: str) -> float | None:
        """Return how often a step of the arm has the work; None: unknown."""
        if arm in self.absent_in:
            return 0.0
        period = self.period[arm]
        return None if period is None else period.per_step


def find_work(windows: Sequence[Window]) -> list[Work]:
    """Return all work that some steps have and most do not."""
    works = _hooked_works(windows)
    is_explained = {w.index: np.zeros(w.num_steps, dtype=np.bool_) for w in windows}
    for work in works:
        for index, is_due in work.is_due.items():
            is_explained[index] = is_explained[index] | is_due
    return [*works, *_works_without_hook(windows, is_explained)]


# ---- from hooks ----


def _hooked_works(windows: Sequence[Window]) -> list[Work]:
    kinds: list[SpellKind] = []
    for window in windows:
        kinds += [kind for kind in window.kinds if kind not in kinds]
    rare = [kind for kind in kinds if _is_rare(windows, kind)]
    if "epoch_end" not in kinds and any(window.steps_per_epoch for window in windows):
        rare.append("epoch_end")  # it comes, although no trial was long enough for one
    works = [_hooked_work(windows, together) for together in _joined(windows, rare)]
    return [work for work in works if _is_relevant(work)]


def _is_relevant(work: Work) -> bool:
    """Whether the work is in a window, or is known to come."""
    is_seen = any(is_due.any() for is_due in work.is_due.values())
    return is_seen or any(period is not None for period in work.period.values())


def _is_rare(windows: Sequence[Window], kind: SpellKind) -> bool:
    """Whether few of the measured steps of any arm have the kind."""
    shares = []
    for arm in {window.arm for window in windows}:
        of_arm = [window for window in windows if window.arm == arm]
        num_steps = sum(window.num_steps for window in of_arm)
        num_with = sum(int(window.has(list(window.spells(kind))).sum()) for window in of_arm)
        shares.append(num_with / max(num_steps, 1))
    return max(shares) <= MAX_SHARE_OF_STEPS


def _joined(windows: Sequence[Window], kinds: Sequence[SpellKind]) -> list[tuple[SpellKind, ...]]:
    """Return the kinds in groups that come in the same steps."""
    groups: list[list[SpellKind]] = []
    for kind in kinds:
        same = [group for group in groups if _come_together(windows, group[0], kind)]
        if same:
            same[0].append(kind)
        else:
            groups.append([kind])
    return [tuple(group) for group in groups]


def _come_together(windows: Sequence[Window], one: SpellKind, other: SpellKind) -> bool:
    num_common = num_any = 0
    for window in windows:
        first, second = window.spells(one).keys(), window.spells(other).keys()
        if first and second:
            num_common += len(first & second)
            num_any += len(first | second)
    return num_any > 0 and num_common >= MIN_COMMON_SHARE * num_any


def _hooked_work(windows: Sequence[Window], kinds: tuple[SpellKind, ...]) -> Work:
    occurrences = {window.index: _occurrences(window, kinds) for window in windows}
    is_due = {window.index: window.has(occurrences[window.index]) for window in windows}
    of_job = _period_of_hooked(windows, occurrences, kinds)
    arms = {window.arm for window in windows}
    period, absent = {}, set()
    for arm in arms:
        of_arm = [window for window in windows if window.arm == arm]
        period[arm] = _period_of_arm(of_arm, occurrences, of_job)
        if of_job is not None and _is_absent(of_arm, occurrences, of_job):
            absent.add(arm)
    is_exact = of_job is not None and of_job.is_exact
    return Work(
        kinds=kinds,
        is_due=is_due,
        is_first={w.index: w.has(occurrences[w.index][:1]) & is_exact for w in windows},
        period=period,
        absent_in=frozenset(absent),
        hook_s={arm: _hook_s([w for w in windows if w.arm == arm], kinds) for arm in arms},
    )


def _occurrences(window: Window, kinds: Sequence[SpellKind]) -> Numbers:
    """Return the numbers of the steps that have any of the kinds. The first step of a job has its own costs."""
    numbers = {number for kind in kinds for number in window.spells(kind) if number > 0 or not window.is_numbered}
    return np.array(sorted(numbers), dtype=np.int64)


def _period_of_hooked(
    windows: Sequence[Window], occurrences: dict[int, Numbers], kinds: Sequence[SpellKind]
) -> Period | None:
    """Return the period by the gaps; else by the first occurrence, counted from the start of the job; else a rate."""
    found = [occurrences[window.index] for window in windows]
    gaps = gaps_within(found)
    period = period_of_gaps(gaps, fewest=1)
    if period is not None:
        return period
    firsts = {int(o[0]) for window, o in zip(windows, found, strict=True) if window.is_numbered and len(o)}
    if not gaps and len(firsts) == 1 and not _FROM_THE_START.isdisjoint(kinds):
        return Period(steps=float(firsts.pop()), is_exact=True)
    epochs = {window.steps_per_epoch for window in windows} - {None}
    if not gaps and "epoch_end" in kinds and len(epochs) == 1:
        return Period(steps=float(epochs.pop() or 1), is_exact=True)
    counts = [int(window.has(o).sum()) for window, o in zip(windows, found, strict=True)]
    if sum(counts) < MIN_FOR_RATE:
        return None
    return Period(steps=sum(window.num_steps for window in windows) / sum(counts), is_exact=False)


def _period_of_arm(windows: Sequence[Window], occurrences: dict[int, Numbers], of_job: Period | None) -> Period | None:
    """Return the job's period, or that of the arm if it clearly has another one."""
    gaps = gaps_within([occurrences[window.index] for window in windows])
    own = period_of_gaps(gaps, fewest=1)
    if of_job is None or own is None:
        return own or of_job
    differs = abs(own.steps - of_job.steps) > MIN_DIFFERENCE * of_job.steps
    return own if differs and (own.is_exact or len(gaps) >= MIN_FOR_RATE) else of_job


def _is_absent(windows: Sequence[Window], occurrences: dict[int, Numbers], period: Period) -> bool:
    """Whether the trials of an arm would have had the work since their start, and did not."""
    if any(len(occurrences[window.index]) for window in windows):
        return False
    num_steps = [window.num_recorded for window in windows]
    if period.is_exact:
        return any(period.is_spanned_by(number) for number in num_steps)
    return sum(num_steps) / period.steps >= MIN_ABSENT


def _hook_s(windows: Sequence[Window], kinds: Sequence[SpellKind]) -> float:
    """Return the median of what the hooks measured in a step with the work; 0 if they measured nothing.

    The first in each trial counts only where it is the only one: it may have costs that do not return.
    """
    totals: list[float] = []
    firsts: list[float] = []
    for window in windows:
        by_step: dict[int, float] = {}
        for kind in kinds:
            for number, seconds in window.spells(kind).items():
                by_step[number] = by_step.get(number, 0.0) + seconds
        in_order = [by_step[number] for number in sorted(by_step) if number > 0 or not window.is_numbered]
        firsts += in_order[:1]
        totals += in_order[1:]
    return float(np.median(totals or firsts)) if firsts else 0.0


# ---- from the times ----


def _works_without_hook(windows: Sequence[Window], is_explained: dict[int, Flags]) -> list[Work]:
    is_long = {w.index: _long_steps(w.step_s, is_explained[w.index]) for w in windows}
    is_open = {index: ~flags for index, flags in is_explained.items()}
    works: list[Work] = []
    while len(works) < MAX_WORKS_WITHOUT_HOOK and any(flags.any() for flags in is_long.values()):
        work = _scheduled_work(windows, is_long, is_open)
        if work is None:
            break
        works.append(work)
        is_left = _longer_than_usual(windows, work)
        is_long = {index: flags & (~work.is_due[index] | is_left[index]) for index, flags in is_long.items()}
        is_open = {index: flags & (~work.is_due[index] | is_left[index]) for index, flags in is_open.items()}
    rest = _unscheduled_work(windows, is_long)
    return [*works, *([rest] if rest is not None else [])]


def _long_steps(step_s: Floats, is_explained: Flags) -> Flags:
    """Return the steps that are far above the others, and are rare."""
    others = step_s[~is_explained]
    if not len(others):
        return np.zeros(len(step_s), dtype=np.bool_)
    middle = float(np.median(others))
    spread = _NORMAL_MAD * float(np.median(np.abs(others - middle)))
    is_long = ~is_explained & (step_s > max(LONG_STEP * middle, middle + MIN_DEVIATIONS * spread))
    if is_long.sum() > MAX_SHARE_OF_STEPS * len(others):
        return np.zeros(len(step_s), dtype=np.bool_)
    return np.asarray(is_long)


def _longer_than_usual(windows: Sequence[Window], work: Work) -> dict[int, Flags]:
    """Return the steps with the work that are far above the others with it, so that other work must be in them too."""
    is_left = {}
    for window in windows:
        is_due = work.is_due[window.index]
        is_usual = is_due & ~work.is_first[window.index]
        usual_s = float(np.quantile(window.step_s[is_usual], _LOW_QUANTILE)) if is_usual.any() else np.inf
        is_left[window.index] = is_usual & (window.step_s > LONG_STEP * usual_s)
    return is_left


def _scheduled_work(windows: Sequence[Window], is_long: dict[int, Flags], is_open: dict[int, Flags]) -> Work | None:
    """Return the work with an exact period that explains most long steps."""
    numbers = [window.number for window in windows]
    flags = [is_long[window.index] for window in windows]
    counts = [is_open[window.index] for window in windows]
    is_numbered = all(window.is_numbered for window in windows)
    schedule = common_schedule(numbers, flags, counts) if is_numbered else None
    first_due = schedule is not None
    schedule = schedule or separate_schedule(numbers, flags, counts)
    if schedule is None:
        return None
    is_due = {window.index: due for window, due in zip(windows, schedule.due, strict=True)}
    return Work(
        kinds=("unknown",),
        is_due=is_due,
        is_first={w.index: _first_due(w, is_due[w.index], schedule.period, is_common=first_due) for w in windows},
        period=dict.fromkeys({window.arm for window in windows}, schedule.period),
    )


def _first_due(window: Window, is_due: Flags, period: Period, *, is_common: bool) -> Flags:
    """Return the occurrence that may be the first in the job; without numbers, the first of several."""
    is_first = np.zeros(len(is_due), dtype=np.bool_)
    places = np.flatnonzero(is_due)
    if not len(places):
        return is_first
    is_early = window.number[places[0]] <= period.steps if is_common else len(places) > 1
    is_first[places[0]] = is_early
    return is_first


def _unscheduled_work(windows: Sequence[Window], is_long: dict[int, Flags]) -> Work | None:
    """Return the long steps without a period: with a rate if they come at any place, else of unknown frequency."""
    num_long = sum(int(flags.sum()) for flags in is_long.values())
    if not num_long:
        return None
    num_steps = sum(window.num_steps for window in windows)
    numbers = [window.number[is_long[window.index]] for window in windows]
    period = period_of_gaps(gaps_within(numbers), fewest=2)
    is_random = period is None and num_long >= MIN_FOR_RATE and _is_anywhere(windows, is_long)
    if is_random:
        period = Period(steps=num_steps / num_long, is_exact=False)
    return Work(
        kinds=("unknown",),
        is_due=is_long,
        is_first={index: np.zeros(len(flags), dtype=np.bool_) for index, flags in is_long.items()},
        period=dict.fromkeys({window.arm for window in windows}, period),
        is_random=is_random,
    )


def _is_anywhere(windows: Sequence[Window], is_long: dict[int, Flags]) -> bool:
    """Whether long steps come by chance: with numbers, other trials have the same steps, and there they are not long.

    Without numbers, one trial must hold several at irregular gaps.
    """
    if not all(window.is_numbered for window in windows):
        return any(flags.sum() >= MIN_FOR_RATE for flags in is_long.values())
    number = np.concatenate([window.number for window in windows])
    flags = np.concatenate([is_long[window.index] for window in windows])
    at_long = np.isin(number, number[flags])
    return bool(at_long.sum() >= 2 * flags.sum())
