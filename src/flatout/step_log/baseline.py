"""The time that each step of a rank takes without a stall at that point in the job.

In: a rank's step times without its known stalls. Out: medians of blocks of steps, interpolated linearly. Where steps
grow within each epoch and fall back at its end, nothing is interpolated across that end.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

MIN_PER_BLOCK, MAX_BLOCKS = 25, 40  # steps per block, and number of blocks
MIN_PER_BLOCK_OF_TOOTH, MAX_BLOCKS_OF_TOOTH = 6, 8  # the same within an epoch in which steps grow
MIN_USABLE_SHARE_OF_TOOTH = 0.5

Times = NDArray[np.float64]
Flags = NDArray[np.bool_]


def baseline_s(time_s: Times, is_measured: Flags, is_ordinary: Flags, teeth: Sequence[int]) -> Times:
    """Return the baseline of one rank; `teeth` are the columns at which steps fall back, none for most jobs.

    A step that the rank lacks is NaN in `time_s`.
    """
    is_known = ~np.isnan(time_s)
    is_usable = is_measured & is_known
    if not is_usable.any():  # the rank ended in the warm-up of another one
        is_usable = is_ordinary & is_known
    if not is_usable.any():
        return np.full(len(time_s), np.nan)
    if not teeth:
        return _of_all_steps(time_s, is_usable)
    return _of_teeth(time_s, is_usable, teeth)


def _of_all_steps(time_s: Times, is_usable: Flags) -> Times:
    usable = np.flatnonzero(is_usable)
    num_blocks = int(min(max(len(usable) // MIN_PER_BLOCK, 1), MAX_BLOCKS))
    centres, medians = _blocks(time_s, usable, num_blocks)
    return np.interp(np.arange(len(time_s)), centres, medians)


def _blocks(time_s: Times, usable: NDArray[np.int64], num_blocks: int) -> tuple[Times, Times]:
    """Return the centre and the median of each block."""
    blocks = np.array_split(usable, num_blocks)
    centres = [float(block.mean()) for block in blocks]
    medians = [float(np.median(time_s[block])) for block in blocks]
    return np.array(centres), np.array(medians)


def _of_teeth(time_s: Times, is_usable: Flags, starts: Sequence[int]) -> Times:
    """Return the baseline of steps that change within each tooth.

    A tooth with too few usable steps, in the warm-up or at the end of the job, takes the values of the longest one.
    """
    edges = sorted({0, *starts, len(time_s)})
    teeth = [_of_tooth(time_s, is_usable, low, high) for low, high in pairwise(edges)]
    with_values = [tooth for tooth in teeth if tooth is not None]
    if not with_values:
        return _of_all_steps(time_s, is_usable)
    longest = max(with_values, key=len)
    values = []
    for tooth, (low, high) in zip(teeth, pairwise(edges), strict=True):
        values.append(np.resize(longest, high - low) if tooth is None else tooth)
    return np.concatenate(values)


def _of_tooth(time_s: Times, is_usable: Flags, low: int, high: int) -> Times | None:
    """Return the baseline of the steps in one tooth, extrapolated to its ends; None if too few steps are usable."""
    usable = low + np.flatnonzero(is_usable[low:high])
    num_blocks = min(len(usable) // MIN_PER_BLOCK_OF_TOOTH, MAX_BLOCKS_OF_TOOTH)
    if num_blocks < 2 or len(usable) < MIN_USABLE_SHARE_OF_TOOTH * (high - low):
        return None
    centres, medians = _blocks(time_s, usable, num_blocks)
    slopes = np.diff(medians) / np.diff(centres)
    steps = np.arange(low, high)
    inside = np.interp(steps, centres, medians)
    before = np.minimum(steps - centres[0], 0.0) * slopes[0]
    after = np.maximum(steps - centres[-1], 0.0) * slopes[-1]
    return np.asarray(np.maximum(inside + before + after, 0.0))
