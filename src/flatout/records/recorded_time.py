"""The time of a whole recording: its parts, which sum to its wall time, and a timeline of all steps of all ranks.

A timeline has one lane per rank or per group of neighbouring ranks. Each bin holds the longest of its steps, so that no
stall vanishes. All times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import msgspec


class WallPart(StrEnum):
    """A class of the recording's wall time, in the order of the reports."""

    BEFORE_FIRST_STEP = "before_first_step"  # from the start of the command; includes earlier attempts
    WARM_UP = "warm_up"  # compilation and initialization in the first steps, beyond a regular step
    REGULAR_STEPS = "regular_steps"
    STALLS = "stalls"  # beyond the regular step
    RECORDER = "recorder"  # the recorder's own work, in and between the steps that it marks
    NOT_RECORDED = "not_recorded"  # steps whose records are lost
    AFTER_LAST_STEP = "after_last_step"


class BinKind(StrEnum):
    """The kind of the steps in a bin of the timeline, one letter per bin."""

    REGULAR = "."
    STALL = "s"
    WARM_UP = "w"
    RECORDER = "r"
    MISSING = "-"


JOB_KINDS = frozenset({BinKind.REGULAR, BinKind.STALL})  # undisturbed steps of the job


def longest_of(seconds: Sequence[float], kinds: Sequence[str]) -> tuple[float, str]:
    """Return the length and the kind of the step that stands for a bin: the longest undisturbed one, if there is any.

    A bin with a stall has the kind `stall`.
    """
    of_job = [index for index, kind in enumerate(kinds) if kind in JOB_KINDS]
    candidates = of_job or range(len(kinds))
    longest = max(candidates, key=lambda index: seconds[index])
    if any(kind == BinKind.STALL for kind in kinds):
        return float(seconds[longest]), BinKind.STALL
    return float(seconds[longest]), str(kinds[longest])


class TimelineLane(msgspec.Struct, frozen=True, kw_only=True):
    ranks: tuple[int, ...]
    longest_s: tuple[float, ...]  # of each bin; an undisturbed step before one of the warm-up or the recorder
    kinds: str  # the letter of each bin, see BinKind


class StepTimeline(msgspec.Struct, frozen=True, kw_only=True):
    first_step: int
    num_steps: int
    steps_per_bin: int
    lanes: tuple[TimelineLane, ...]


class CallLatency(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a model with batches of one size, in a script that only infers; each from its start to the next."""

    num_samples: float | None  # of a rank's batch; None: unknown
    num_calls: int  # of all ranks, after the warm-up
    p50_s: float
    p90_s: float | None  # None: too few calls
    p99_s: float | None
    samples_per_s: float | None  # of a rank, while it calls with such batches
    num_at_once: float | None = None  # calls at the same time, of several threads: times are those within the model
    is_launching: bool | msgspec.UnsetType = msgspec.UNSET  # true: the host runs ahead of the GPU, and only launches


class UncountedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of all ranks that count in no `CallLatency`, because their time is not the model's alone."""

    num_warm_up: int  # until the times of calls were stable
    num_disturbed: int  # prolonged by the recorder's own work


class RecordedTime(msgspec.Struct, frozen=True, kw_only=True):
    num_steps: int
    wall_s: float  # from the start of the command to its end
    parts_s: dict[str, float]  # by WallPart, the mean over the ranks; sums to `wall_s`
    stalls_s: dict[str, float]  # by cause, largest first; sums to the part `stalls`
    timeline: StepTimeline
    calls: tuple[CallLatency, ...] = ()  # of a script that only infers, by size of the batch, the most frequent first
    uncounted_calls: UncountedCalls | None = None  # of `calls`; None: the steps are not calls, or all count
