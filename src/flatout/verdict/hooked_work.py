"""Find the work that the recorder's hooks saw in some steps, and how often it returns.

In: the windows of all trials. Out: a `Work` for each kind, or for several kinds that come in the same steps. What the
hooks saw in the warm-up shows the period too, so it may be longer than the windows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from flatout.records.trial import SpellKind
from flatout.verdict.periods import Numbers, Period, gaps_within, period_of_gaps
from flatout.verdict.typical_firsts import is_first_typical
from flatout.verdict.window import Window
from flatout.verdict.work import MAX_SHARE_OF_STEPS, MIN_ABSENT, MIN_FOR_RATE, Work

MIN_COMMON_SHARE = 0.8  # of the steps of two kinds, so that they are one work
MIN_DIFFERENCE = 0.2  # of an arm's own mean period from the job's; below, it may be chance

# Kinds that come after a number of steps from the start of the job, so that the first one shows the period.
_FROM_THE_START: frozenset[SpellKind] = frozenset({"epoch_end", "loader_start", "evaluation", "checkpoint"})


def hooked_works(windows: Sequence[Window]) -> list[Work]:
    kinds: list[SpellKind] = []
    for window in windows:
        kinds += [kind for kind in window.kinds if kind not in kinds]
    rare = [kind for kind in kinds if _is_rare(windows, kind)]
    if "epoch_end" not in kinds and any(window.steps_per_epoch for window in windows):
        rare.append("epoch_end")  # it comes, although no trial was long enough for one
    works = [_hooked_work(windows, together) for together in _joined(windows, rare)]
    return [work for work in works if _is_relevant(work)]


def _is_relevant(work: Work) -> bool:
    """Whether the work is in a window, or is known to come after it."""
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
    of_job = _period_by_steps(windows, occurrences, kinds) or _rate(windows, occurrences)
    of_arms: dict[str, list[Window]] = defaultdict(list)
    for window in windows:
        of_arms[window.arm].append(window)
    absent = [arm for arm, of_arm in of_arms.items() if of_job is not None and _is_absent(of_arm, occurrences, of_job)]
    is_exact = of_job is not None and of_job.is_exact
    has_firsts = is_exact and not _is_first_typical(windows, kinds)
    return Work(
        kinds=kinds,
        is_due=is_due,
        is_first={w.index: w.has(occurrences[w.index][:1]) & has_firsts for w in windows},
        period={arm: _period_of_arm(of_arm, occurrences, kinds, of_job) for arm, of_arm in of_arms.items()},
        absent_in=frozenset(absent),
        hook_s={arm: _hook_s(of_arm, kinds) for arm, of_arm in of_arms.items()},
    )


def _occurrences(window: Window, kinds: Sequence[SpellKind]) -> Numbers:
    """Return the numbers of the steps that have any of the kinds. The first step of a job has its own costs."""
    numbers = {number for kind in kinds for number in window.spells(kind) if number > 0 or not window.is_numbered}
    return np.array(sorted(numbers), dtype=np.int64)


def _period_by_steps(
    windows: Sequence[Window], occurrences: dict[int, Numbers], kinds: Sequence[SpellKind]
) -> Period | None:
    """Return the period by the gaps; else by the length of the loader, or by the first occurrence.

    The first occurrence counts from the start of the job. A job that resumes within an epoch has its first end earlier.
    """
    of_windows = [occurrences[window.index] for window in windows]
    gaps = gaps_within(of_windows)
    if gaps:
        return period_of_gaps(gaps, fewest=1)
    firsts = {int(numbers[0]) for numbers in of_windows if len(numbers)}
    epochs = {window.steps_per_epoch for window in windows} - {None}
    if "epoch_end" in kinds and len(epochs) == 1:
        epoch_steps = epochs.pop() or 1
        if epoch_steps >= max(firsts, default=0):  # else it is the length of another loader
            return Period(steps=float(epoch_steps), is_exact=True)
    is_numbered = all(window.is_numbered for window in windows)
    if is_numbered and len(firsts) == 1 and not _FROM_THE_START.isdisjoint(kinds):
        return Period(steps=float(firsts.pop()), is_exact=True)
    return None


def _rate(windows: Sequence[Window], occurrences: dict[int, Numbers]) -> Period | None:
    """Return the mean number of steps per occurrence; None if no trial has two: then it may come once per job."""
    counts = [int(window.has(occurrences[window.index]).sum()) for window in windows]
    returns = any(len(occurrences[window.index]) > 1 for window in windows)
    if not returns or sum(counts) < MIN_FOR_RATE:
        return None
    return Period(steps=sum(window.num_steps for window in windows) / sum(counts), is_exact=False)


def _period_of_arm(
    windows: Sequence[Window], occurrences: dict[int, Numbers], kinds: Sequence[SpellKind], of_job: Period | None
) -> Period | None:
    """Return the arm's own period if that is exact, or clearly another one than the job's."""
    own = _period_by_steps(windows, occurrences, kinds)
    if own is None or of_job is None or own.is_exact:
        return own or of_job
    num_gaps = len(gaps_within([occurrences[window.index] for window in windows]))
    differs = abs(own.steps - of_job.steps) > MIN_DIFFERENCE * of_job.steps
    return own if differs and num_gaps >= MIN_FOR_RATE else of_job


def _is_absent(windows: Sequence[Window], occurrences: dict[int, Numbers], period: Period) -> bool:
    """Whether the trials of an arm would have had the work since their start, and did not."""
    if any(len(occurrences[window.index]) for window in windows):
        return False
    num_steps = [window.num_recorded for window in windows]
    if period.is_exact:
        return any(period.is_spanned_by(number) for number in num_steps)
    return sum(num_steps) / period.steps >= MIN_ABSENT


def _is_first_typical(windows: Sequence[Window], kinds: Sequence[SpellKind]) -> bool:
    timed = {kind for kind in kinds for window in windows if any(window.spells(kind).values())}
    known = {kind for window in windows for kind in window.typical_firsts}
    return is_first_typical([_seconds_by_step(window, kinds) for window in windows], timed, known)


def _seconds_by_step(window: Window, kinds: Sequence[SpellKind]) -> dict[int, float]:
    """Return what hooks measured in each step with the work. The first step of a job has its own costs."""
    by_step: dict[int, float] = {}
    for kind in kinds:
        for number, seconds in window.spells(kind).items():
            if number > 0 or not window.is_numbered:
                by_step[number] = by_step.get(number, 0.0) + seconds
    return by_step


def _hook_s(windows: Sequence[Window], kinds: Sequence[SpellKind]) -> float:
    """Return the median of what the hooks measured in a step with the work; 0 if they measured nothing.

    The first in each trial counts only where it is the only one: it may have costs that do not return.
    """
    totals: list[float] = []
    firsts: list[float] = []
    for window in windows:
        by_step = _seconds_by_step(window, kinds)
        in_order = [by_step[number] for number in sorted(by_step)]
        firsts += in_order[:1]
        totals += in_order[1:]
    return float(np.median(totals or firsts)) if firsts else 0.0
