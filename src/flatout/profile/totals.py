"""The steps of all ranks as totals of the recording: a mean step that includes its stalls, and the regular step.

In: the ranks of a recording. Out: `StepTotals`, or None if no step was measured. All steps count, but two kinds of time
do not: the recorder's own work in the steps that it marks, and the warm-up (compilation, lazy initialization) in the
steps before step times were stable. Neither prolongs waiting for a loader or writing a checkpoint, so that time counts
in every step, including the first. All other time is taken from the undisturbed steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.inside.protocol import NUM_STABLE_WARMUP_STEPS
from flatout.records.recording import RankRecording, Steps

Column = NDArray[np.float64]
SPIKE = 1.5  # as a multiple of the median of the neighbouring steps
NUM_NEIGHBOURS = 25  # steps per block, so that a slow drift does not count as spikes


class StepTotals(msgspec.Struct, frozen=True, kw_only=True):
    num_steps: int
    mean_step_s: float  # over all steps, including stalls
    regular_step_s: float  # median of the undisturbed steps
    spike_share: float  # share of the undisturbed steps that took far longer than their neighbours
    first_wait_s: float  # the first step's wait for its batch, which occurs once per job; part of the mean step


def step_totals(ranks: Sequence[RankRecording]) -> StepTotals | None:
    """Return the totals of the job's steps, each being the mean over the ranks that have it; None: none was measured.

    Ranks wait for each other, so the loader or checkpoint that prolongs a step is that of the rank with the most.
    """
    if any(rank.settled_step is None for rank in ranks):
        return None
    numbers = sorted({int(number) for rank in ranks for number in rank.steps.number})
    row_of = {number: row for row, number in enumerate(numbers)}
    is_undisturbed = _undisturbed(ranks, row_of)
    if not is_undisturbed.any():
        return None
    duration_s = np.nanmean(_by_rank(ranks, row_of, lambda steps: steps.duration_s), axis=0)
    loader_s = np.nanmax(_by_rank(ranks, row_of, lambda steps: steps.loader_s), axis=0)
    checkpoint_s = np.nanmax(_by_rank(ranks, row_of, lambda steps: steps.checkpoint_s), axis=0)

    waited_s = _excess(loader_s, is_undisturbed) + _excess(checkpoint_s, is_undisturbed)
    other_s = (duration_s - waited_s)[is_undisturbed]
    return StepTotals(
        num_steps=len(numbers),
        mean_step_s=float(other_s.mean() + waited_s.mean()),
        regular_step_s=float(np.median(duration_s[is_undisturbed])),
        spike_share=_spike_share(duration_s[is_undisturbed]),
        first_wait_s=float(waited_s[0]) if numbers[0] == 0 else 0.0,
    )


def _spike_share(duration_s: Column) -> float:
    """Return the share of the steps that took at least `SPIKE` times the median of their neighbours."""
    blocks = np.array_split(duration_s, max(len(duration_s) // NUM_NEIGHBOURS, 1))
    num_spikes = sum(int((block >= SPIKE * np.median(block)).sum()) for block in blocks)
    return num_spikes / len(duration_s)


def _undisturbed(ranks: Sequence[RankRecording], row_of: dict[int, int]) -> NDArray[np.bool_]:
    """Return which steps are ordinary and after the warm-up on all ranks that have them.

    Without any, the last steps of the warm-up are returned, whose times were stable.
    """
    is_ordinary = np.ones(len(row_of), dtype=np.bool_)
    settled = 0
    for rank in ranks:
        rows = [row_of[int(number)] for number in rank.steps.number]
        is_ordinary[rows] &= rank.steps.is_ordinary
        settled = max(settled, rank.settled_step or 0)
    numbers = np.array(list(row_of))
    after_warmup = is_ordinary & (numbers >= settled)
    if after_warmup.any():
        return after_warmup
    return is_ordinary & (numbers >= settled - NUM_STABLE_WARMUP_STEPS)


def _by_rank(ranks: Sequence[RankRecording], row_of: dict[int, int], column: Callable[[Steps], Column]) -> Column:
    """Return a column of the steps as ranks x steps, NaN where a rank lacks a step."""
    values = np.full((len(ranks), len(row_of)), np.nan)
    for index, rank in enumerate(ranks):
        rows = [row_of[int(number)] for number in rank.steps.number]
        values[index, rows] = column(rank.steps)
    return values


def _excess(values: Column, is_undisturbed: NDArray[np.bool_]) -> Column:
    """Return how far each step exceeds the median of the undisturbed steps."""
    return np.maximum(values - np.median(values[is_undisturbed]), 0.0)
