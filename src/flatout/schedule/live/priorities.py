"""Priorities that put jobs into the desired order with few changes, since each change is an action on the cluster."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

HIGHEST = 4_294_967_200  # to Slurm, the largest 32-bit values mean "not set" and "infinite"
LOWEST = 1  # priority 0 would hold the job
_SPACING = 1000


def new_priorities(wanted: Sequence[str], current: dict[str, int]) -> dict[str, int]:
    """Return the jobs whose priority must change, with the new value; the first of `wanted` gets the highest.

    As many jobs as possible that are already in order are unchanged, unless too few numbers are left between them.
    """
    values = [current[job] for job in wanted]
    kept = _longest_decreasing(values)
    runs = _runs(kept, len(wanted))
    new: dict[str, int] = {}
    done_until = 0
    for first, last in runs:
        if first < done_until:
            continue
        first, last, numbers = _widened(values, kept, first, last, done_until)
        done_until = last
        for position, number in zip(range(first, last), numbers, strict=True):
            if values[position] != number:
                new[wanted[position]] = number
                values[position] = number
            kept.add(position)
    # A value that was widened twice may be the first one again.
    return {job: number for job, number in new.items() if number != current[job]}


def _longest_decreasing(values: Sequence[int]) -> set[int]:
    """Return the positions of a longest strictly decreasing subsequence, which excludes held jobs (priority 0)."""
    ends: list[int] = []
    at: list[int] = []
    before: dict[int, int | None] = {}
    for position, value in enumerate(values):
        if value < LOWEST:
            continue
        slot = bisect_left(ends, -value)
        before[position] = at[slot - 1] if slot else None
        if slot == len(ends):
            ends.append(-value)
            at.append(position)
        else:
            ends[slot], at[slot] = -value, position
    kept: set[int] = set()
    position_in_chain = at[-1] if at else None
    while position_in_chain is not None:
        kept.add(position_in_chain)
        position_in_chain = before[position_in_chain]
    return kept


def _runs(kept: set[int], number: int) -> list[tuple[int, int]]:
    """Return the runs of positions that are not kept, as half-open ranges."""
    runs: list[tuple[int, int]] = []
    for position in range(number):
        if position in kept:
            continue
        if runs and runs[-1][1] == position:
            runs[-1] = (runs[-1][0], position + 1)
        else:
            runs.append((position, position + 1))
    return runs


def _widened(
    values: Sequence[int], kept: set[int], first: int, last: int, done_until: int
) -> tuple[int, int, list[int]]:
    """Return the run, widened by as few positions as possible until its borders leave enough numbers between them."""
    total = len(values)
    for width in range(last - first, total + 1):
        for start in range(max(last - width, 0), min(first, total - width) + 1):
            end = start + width
            # The run's borders must be jobs that keep their priority.
            if start < done_until and start < first and start not in kept:
                continue
            if (start > 0 and start - 1 not in kept) or (end < total and end not in kept):
                continue
            below = values[end] if end < total else None
            above = values[start - 1] if start > 0 else None
            numbers = _between(above, below, width)
            if numbers is not None:
                return start, end, numbers
    raise AssertionError("there are more jobs than priorities")


def _between(above: int | None, below: int | None, number: int) -> list[int] | None:
    """Return `number` falling values strictly between, evenly spaced for later jobs; None if there are too few."""
    if above is None and below is None:
        above, below = HIGHEST, max(LOWEST - 1, HIGHEST - _SPACING * (number + 1) * 2)
    elif above is None:
        assert below is not None
        above = max(min(HIGHEST, below + _SPACING * (number + 1)), below + 1)
    elif below is None:
        below = max(LOWEST - 1, above - _SPACING * (number + 1))
    assert above is not None
    room = above - below - 1
    if room < number:
        return None
    return [above - (index + 1) * (above - below) // (number + 1) for index in range(number)]
