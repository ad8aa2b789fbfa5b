"""The steps of all ranks as totals of the recording: a mean step that includes its stalls, and the regular step.

In: the ranks of a recording. Out: `StepTotals`, or None if no step was measured. Both steps are those of the job's log,
so that rates, shares and the costs of findings refer to the same values.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.job_log import JobLog, StallCause
from flatout.records.recording import RankRecording
from flatout.step_log.job_log import job_log

SPIKE = 1.5  # as a multiple of the median of the neighbouring steps
NUM_NEIGHBOURS = 25  # steps per block, so that a slow drift does not count as spikes


class StepTotals(msgspec.Struct, frozen=True, kw_only=True):
    num_steps: int
    mean_step_s: float  # over all steps, including stalls
    regular_step_s: float  # median of the measured steps, without stalls
    spike_share: float  # share of the measured steps that took far longer than their neighbours
    first_wait_s: float  # the first step's wait for its batch, which occurs once per job; part of the mean step


def step_totals(ranks: Sequence[RankRecording]) -> StepTotals | None:
    """Return the totals of the job's steps; None: no step was measured, or the warm-up was not over."""
    if any(rank.settled_step is None for rank in ranks):
        return None
    log = job_log(ranks)
    if log is None:
        return None
    return StepTotals(
        num_steps=log.num_steps,
        mean_step_s=log.step_s,
        regular_step_s=log.regular_s,
        spike_share=_spike_share(np.nanmean(log.duration_s[:, log.is_measured], axis=0)),
        first_wait_s=_first_wait_s(log),
    )


def _spike_share(duration_s: NDArray[np.float64]) -> float:
    """Return the share of the steps that took at least `SPIKE` times the median of their neighbours."""
    blocks = np.array_split(duration_s, max(len(duration_s) // NUM_NEIGHBOURS, 1))
    num_spikes = sum(int((block >= SPIKE * np.median(block)).sum()) for block in blocks)
    return num_spikes / len(duration_s)


def _first_wait_s(log: JobLog) -> float:
    causes = (StallCause.LOADER_START, StallCause.LOADER)
    return sum(stall.excess_s for stall in log.stalls if stall.step == 0 and stall.cause in causes)
