"""The result of `flatout diagnose`, as records of the JSON contract `flatout/diagnosis`, version 2.

`parts_s` has all names of `PART_NAMES`, in that order, and sums to `window_s` within 1 us.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Any

import msgspec

from flatout.records.events import Quality
from flatout.records.recorded_time import RecordedTime
from flatout.records.stall_trace import StallTrace


class Part(IntEnum):
    """A class of a rank's time. Parts are exclusive and exhaustive; the glossary defines them."""

    COMPUTE = 0
    TRANSFER = 1
    WAIT = 2
    BUBBLE = 3
    COMMUNICATION_UNSPLIT = 4  # the other ranks' traces are missing, so wait and transfer are unknown
    MEMORY_COPY = 5
    DATA_LOADING = 6
    CHECKPOINT = 7
    ALLOCATOR = 8
    HOST_SYNC = 9
    HOST_LAUNCH = 10
    LAUNCH_LATENCY = 11
    UNATTRIBUTED = 12


PART_NAMES: tuple[str, ...] = tuple(part.name.lower() for part in Part)


class StepDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    step: int  # the profiler's number (ProfilerStep#7 -> 7)
    start_s: float  # since the earliest window start of all ranks
    window_s: float
    parts_s: dict[str, float]


class DeviceDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of a rank that drives several. `wait` includes the time in which it idles while another of them works."""

    device: int
    parts_s: dict[str, float]  # of a mean step; of the whole window if there are no steps


class RankDiagnosis(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    window_s: float  # the interval covers the time before the first step and all steps
    num_steps: int
    parts_s: dict[str, float]  # of the whole window; the mean over `devices` if the rank drives several GPUs
    lead_in_s: float  # from the start of the window to the first step
    steps: tuple[StepDiagnosis, ...]
    step_s: float | None  # mean step; None without steps
    devices: tuple[DeviceDiagnosis, ...] = ()  # the GPUs of a rank that drives several; empty for one GPU or none


class Blame(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed waiting of one rank, charged to the rank and the part that caused it. Complete steps only."""

    waiting_rank: int
    blamed_rank: int
    part: str  # a part name, or "before_window" for lateness from before the recording
    wait_s: float


class GroupPurpose(StrEnum):
    """What the process groups of a job are for."""

    DATA = "data"
    TENSOR = "tensor"
    CONTEXT = "context"
    PIPELINE = "pipeline"
    EXPERT = "expert"
    OTHER = "other"
    UNKNOWN = "unknown"  # communication that no recorded call covers


class GroupSpan(StrEnum):
    WITHIN_NODE = "within node"
    BETWEEN_NODES = "between nodes"
    UNKNOWN = "unknown"  # the traces do not name the hosts of all its ranks


class GroupCommunication(msgspec.Struct, frozen=True, kw_only=True):
    """Exposed communication of the groups of one purpose, size and place: means over all ranks, per step."""

    purpose: GroupPurpose
    span: GroupSpan
    group_size: int | None  # ranks; null: not recorded
    num_groups: int  # 0: not recorded
    names: tuple[str, ...]  # of up to 8 groups
    transfer_s: float
    wait_s: float
    bubble_s: float
    unsplit_s: float  # the traces do not show whether it is waiting or transfer

    @property
    def exposed_s(self) -> float:
        return self.transfer_s + self.wait_s + self.bubble_s + self.unsplit_s


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    code: str  # F01, ... stable
    name: str  # kebab-case
    title: str  # one sentence with the numbers
    ranks: tuple[int, ...]
    cost_s_per_step: float  # seconds that fixing it would save, per step or, without steps, in the window
    share_of_step: float
    evidence: dict[str, Any]
    changes: tuple[str, ...]
    safety: str  # exact | rounding | semantic; of the first change to try
    confidence: str  # high | medium | inconclusive


class JobSummary(msgspec.Struct, frozen=True, kw_only=True):
    num_ranks: int
    world_size: int | None
    missing_ranks: tuple[int, ...]
    device: str | None  # None: the CPU, or unknown
    num_steps: int
    step_s: float | None  # mean over ranks and complete steps
    ranks_of_unknown_device: tuple[int, ...] = ()  # their traces have no GPU events, but they can have used GPUs
    untraced_step_s: float | None = None  # from a recording; None for a plain trace
    hosts: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # if known, and more than one
    # For a recording only: null if missing, and `reasons` says why. A plain trace does not have these keys: all its
    # numbers refer to the traced window. Without `regular_`, rates and MFU are totals of the recording.
    num_recorded_steps: int | msgspec.UnsetType = msgspec.UNSET
    # The share of the job that its traces represent: the regular steps, without the stalls that the step log shows.
    traced_share: float | msgspec.UnsetType | None = msgspec.UNSET
    # The share of the job in the stalls for which a second trace, of one of them, stands. Only with such a trace.
    traced_stall_share: float | msgspec.UnsetType = msgspec.UNSET
    mean_step_s: float | msgspec.UnsetType | None = (
        msgspec.UNSET
    )  # over all recorded steps with their stalls, without warm-up and the recorder's work
    # How long the first recorded step waited for its batch; included in `mean_step_s`.
    first_wait_s: float | msgspec.UnsetType | None = msgspec.UNSET
    samples_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    tokens_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    mfu: float | msgspec.UnsetType | None = msgspec.UNSET
    regular_step_s: float | msgspec.UnsetType | None = msgspec.UNSET  # median of the recorded steps
    regular_samples_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    regular_tokens_per_s: float | msgspec.UnsetType | None = msgspec.UNSET
    regular_mfu: float | msgspec.UnsetType | None = msgspec.UNSET
    mfu_against: str | msgspec.UnsetType | None = (
        msgspec.UNSET
    )  # source of the peak rates: vendor, or measured by flatout bench
    peak_memory_bytes: int | msgspec.UnsetType | None = msgspec.UNSET
    reasons: dict[str, str] | msgspec.UnsetType = msgspec.UNSET


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    job: JobSummary
    ranks: tuple[RankDiagnosis, ...]
    blame: tuple[Blame, ...]
    findings: tuple[Finding, ...]
    data_quality: tuple[Quality, ...]
    recorded: RecordedTime | msgspec.UnsetType = msgspec.UNSET  # of a recording with ordinary steps
    stall_trace: StallTrace | msgspec.UnsetType = msgspec.UNSET  # the second trace of a recording, if there is one
    # Exposed communication by process group, most first: together all of it. A ledger of an older version has none.
    communication: tuple[GroupCommunication, ...] = ()
