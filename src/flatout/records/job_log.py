"""The steps of all ranks of a recorded job, aligned by number: the regular step time, and the steps that stalled.

A *stall* is the time of a step beyond the regular step. Its cause is the rank whose own columns (loader start,
checkpoint, garbage collection, ...) explain it; the other ranks wait for that rank. The first step, and the steps in
which the recorder counted or traced, are not regular: in these, only the time that the columns measured is a stall.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]  # ranks x steps


class StallCause(StrEnum):
    """The activity of a rank in a step that took longer than the regular step."""

    LOADER_START = "loader start"  # a loader's iterator was made, and its first batch awaited
    LOADER = "data loading"  # a batch of a running loader came late
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    LOGGING = "logging"
    COMPILATION = "compilation"
    GARBAGE_COLLECTION = "garbage collection"
    ALLOCATOR = "allocator"  # the CUDA caching allocator emptied its cache and retried
    UNKNOWN = "unknown"


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one step that is explained by one cause."""

    step: int  # its number
    cause: StallCause
    rank: int | None  # the rank that has the cause; None: unknown
    excess_s: float  # beyond the regular step, the mean over all ranks, including those that waited
    is_regular_step: bool = True  # False: the first step, or a step in which the recorder counted or traced
    waiting_ranks: tuple[int, ...] = ()


class JobLog(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The step log of a job. Rows of the matrices are `ranks`, columns are `number`; a missing step is NaN."""

    ranks: tuple[int, ...]
    number: NDArray[np.int64]
    start_ns: NDArray[np.int64]  # unix time; 0: the rank has no such step
    duration_s: Matrix
    spent_s: dict[StallCause, Matrix]  # the rank's own time in measured causes, in excess of the usual time
    num_loader_ends: Matrix | None  # number of times that a loader ran out of batches; None: not recorded
    num_full_collections: int | None  # of Python's garbage collector, on all ranks; None: not recorded
    kind: tuple[str, ...]  # kind of each step, see `StepKind`, from any rank that has the step
    baseline_s: Matrix  # time of a step without a stall at that point in the job
    excess_s: Matrix  # time beyond the baseline, if it exceeds the noise or has a known cause
    regular_s: float  # median step without stalls, mean over ranks
    spread_s: float  # standard deviation of regular steps, without outliers, mean over ranks
    step_s: float  # mean over steps and ranks, with stalls and without the recorder's own work
    stalls: tuple[Stall, ...]  # by step

    @property
    def is_ordinary(self) -> NDArray[np.bool_]:
        """Return which steps are the job's own, undisturbed by the recorder."""
        return np.array([not kind for kind in self.kind], dtype=np.bool_)

    @property
    def num_steps(self) -> int:
        return len(self.number)

    def per_step_s(self, stalls: tuple[Stall, ...]) -> float:
        """Return the cost of the stalls per step of the job."""
        known = sum(stall.excess_s for stall in stalls if stall.cause != StallCause.UNKNOWN)
        unknown = sum(stall.excess_s for stall in stalls if stall.cause == StallCause.UNKNOWN)
        num_ordinary = int(self.is_ordinary.sum())
        return known / max(self.num_steps, 1) + unknown / max(num_ordinary, 1)
