"""The steps of all ranks of a recorded job, aligned by number: the regular step time, and the steps that stalled.

A *stall* is the time of a step beyond the regular step. Its cause is the rank whose own columns (loader start,
checkpoint, garbage collection, ...) explain it; the other ranks wait for that rank. The first step, and the steps in
which the recorder counted or traced, are not regular: in these, only the time that the columns measured is a stall.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.inside.protocol import NUM_STABLE_WARMUP_STEPS, StepKind

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


class Sawtooth(msgspec.Struct, frozen=True, kw_only=True):
    """Step times that change in the same direction within each epoch, and back at its end."""

    starts: tuple[int, ...]  # numbers of the steps with which a tooth begins
    period_steps: int
    num_teeth: int  # complete teeth that have the pattern
    first_s: float  # step time in the first quarter of a tooth, the mean over the teeth
    last_s: float  # in the last quarter
    mean_s: float  # over all steps of these teeth
    is_epoch: bool  # a loader ran out of batches at each start; False: the starts were found in the step times alone


class LaunchedAhead(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a host that launches many steps before it waits for the GPU, which works all the time."""

    period_steps: int | None  # from one wait of the host to the next; None: irregular
    busy_share: float  # share of the traced time in which the GPU works, the least of all ranks
    traced_step_s: float  # the mean over the ranks
    mean_step_s: float  # of the step log, over the steps from one wait to another


class CallColumns(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known of each call, of a script that only infers. Rows and columns as in `JobLog`; unknown is NaN."""

    model_s: Matrix  # within the call; the step also has what the script does between two calls
    num_samples: Matrix
    num_tokens: Matrix
    num_known_tokens: Matrix  # leading tokens of the first sequence that the call before has had too
    is_pooled: bool  # several threads call the model: steps end with calls, and calls overlap


class JobLog(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The step log of a job. Rows of the matrices are `ranks`, columns are `number`; a missing step is NaN."""

    ranks: tuple[int, ...]
    number: NDArray[np.int64]
    start_ns: NDArray[np.int64]  # unix time; 0: the rank has no such step
    duration_s: Matrix
    loader_s: Matrix  # time in which the rank waited for batches, spread over the steps of a starved loader's bursts
    spent_s: dict[StallCause, Matrix]  # the rank's own time in measured causes, in excess of the usual time
    num_loader_ends: Matrix | None  # number of times that a loader ran out of batches; None: not recorded
    evaluation_loader_s: Matrix | None  # part of evaluations in which a loader starts or ends; None: not recorded
    num_full_collections: int | None  # of Python's garbage collector, on all ranks; None: not recorded
    kind: tuple[str, ...]  # kind of each step, see `StepKind`, from any rank that has the step
    baseline_s: Matrix  # time of a step without a stall at that point in the job
    excess_s: Matrix  # time beyond the baseline, if it exceeds the noise or has a known cause
    settled: int  # number of the first step after the warm-up
    regular_s: float  # the regular step: median of the measured steps without their stalls, each the mean over ranks
    spread_s: float  # standard deviation of regular steps, without outliers, mean over ranks
    without_stalls_s: float  # mean over all steps and ranks, without stalls; a disturbed step counts as its baseline
    step_s: float  # the job's mean step: `without_stalls_s`, and the cost of all stalls
    stalls: tuple[Stall, ...]  # by step
    sawtooth: Sawtooth | None = None
    calls: CallColumns | None = None  # None: the steps are not calls of a model without gradients
    launched_ahead: LaunchedAhead | None = None  # with it, the waits for the GPU are not among `stalls`

    @property
    def is_ordinary(self) -> NDArray[np.bool_]:
        """Return which steps are the job's own, undisturbed by the recorder."""
        return np.array([not kind for kind in self.kind], dtype=np.bool_)

    @property
    def is_warm_up(self) -> NDArray[np.bool_]:
        is_first = np.array([kind == StepKind.FIRST for kind in self.kind], dtype=np.bool_)
        return np.asarray((self.number < self.settled) | is_first)

    @property
    def is_measured(self) -> NDArray[np.bool_]:
        """Return which steps are ordinary and after the warm-up; see `measured_steps`."""
        return measured_steps(self.number, self.is_ordinary, self.settled)

    @property
    def num_steps(self) -> int:
        return len(self.number)

    def per_step_s(self, stalls: tuple[Stall, ...]) -> float:
        """Return the cost of the stalls per step of the job."""
        return cost_per_step_s(stalls, self.num_steps, int(self.is_measured.sum()))


def measured_steps(number: NDArray[np.int64], is_ordinary: NDArray[np.bool_], settled: int) -> NDArray[np.bool_]:
    """Return which steps are ordinary and after the warm-up.

    Without any, the ordinary steps at the end of the warm-up are returned, whose times were stable.
    """
    for first in (settled, settled - NUM_STABLE_WARMUP_STEPS):
        is_measured = np.asarray(is_ordinary & (number >= first))
        if is_measured.any():
            return is_measured
    return is_ordinary


def cost_per_step_s(stalls: Iterable[Stall], num_steps: int, num_measured: int) -> float:
    """Return the cost of the stalls per step of the job.

    Measured causes are seen in every step, but a stall of unknown cause is seen only in a measured step.
    """
    seconds = {False: 0.0, True: 0.0}
    for stall in stalls:
        seconds[stall.cause == StallCause.UNKNOWN] += stall.excess_s
    return seconds[False] / max(num_steps, 1) + seconds[True] / max(num_measured, 1)
