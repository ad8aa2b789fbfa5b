"""What `flatout watch` exchanges: a job's labels and exporter, its status at one moment, and findings while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from flatout.records.expectation import StepExpectation


class JobLabels(msgspec.Struct, frozen=True, kw_only=True):
    """The labels that each metric of a job has. Host names are masked if the user asked for it."""

    job: str
    job_id: str  # from Slurm, Kubernetes or Ray; empty: the scheduler gave none
    host: str


class PeakTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long a step would take if its operations ran at the peak rate of the GPUs; MFU is this over the step time."""

    step_s: float
    num_ranks: int  # on which it holds


class ExporterRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an exporter serves, and where."""

    ledger: str
    state: str  # the folder of the run, with one folder of heartbeats per attempt
    address: str
    port: int  # 0: any free port
    labels: JobLabels
    promised_step_s: float | None = None  # from the tuning, see `records.expectation`
    peak_time: PeakTime | None = None
    otlp: str | None = None  # address of an OpenTelemetry collector to push to
    num_starts: int = 0  # times that this exporter was started before


RankState = Literal["running", "starting", "stopped", "ended", "lost"]


class GpuStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What NVML says about the GPU of a rank. Null: the driver does not give it."""

    index: int
    busy_percent: float | None = None
    memory_used_bytes: int | None = None
    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    throttle: tuple[str, ...] = ()


class RankStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One rank at one moment. Null: unknown."""

    rank: int | None
    host: str
    pid: int | None  # null: on another host
    state: RankState
    steps: int | None = None  # of this attempt
    step_s: float | None = None  # median of the last steps, without checkpoints and evaluations
    data_share: float | None = None  # share of the last steps spent waiting for batches
    checkpoint_share: float | None = None  # share of the time since the first step that was spent in checkpoints
    evaluation_share: float | None = None
    exposed_s: float | None = None  # exposed communication per step, in the last exchange that DDP timed
    late_s: float | None = None  # how much later than the earliest rank it came to that exchange
    phase: str | None = None
    age_s: float | None = None  # since the end of the last step
    memory_bytes: int | None = None
    cores_busy: float | None = None  # only of attached processes
    gpu: GpuStatus | None = None


Cause = Literal[
    "late_rank",
    "data_loading",
    "storage",
    "memory",
    "throttling",
    "communication",
    "link_errors",
    "stopped",
    "noisy_neighbour",
    "computation",
    "unknown",
]


class LiveFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A slowdown of the running job: when it began, its cause, and what it has cost so far."""

    cause: Cause
    ranks: tuple[int, ...]  # the culprits; empty: all, or unknown
    first_step: int
    last_step: int | None  # null: it continues
    before_s: float  # step time before
    after_s: float  # step time since
    cost_gpu_h: float
    cost_usd: tuple[float, float] | None = None  # by the lowest and the highest price; null: no price is known
    evidence: dict[str, float] = {}


class WatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One job at one moment, as `flatout watch --json` prints it."""

    name: str
    program: str  # "flatout run", "flatout profile", or "attached"
    pid: int  # of the program, or of the attached process
    attempt: int | None
    world_size: int | None
    ranks: tuple[RankStatus, ...]
    missing_ranks: tuple[int, ...]  # never seen in this attempt, on any node
    step_s: float | None  # median over ranks
    goodput: float | None
    devices: int | None
    tokens_per_s: float | None = None  # of all ranks here; null: batches do not show their tokens
    samples_per_s: float | None = None
    mfu: float | None = None  # with `flatout run --recording` of a job whose operations were counted
    promised: StepExpectation | None = None  # what the tuning of `flatout run --config` measured
    findings: tuple[LiveFinding, ...] = ()
    notes: tuple[str, ...] = ()  # what is unknown, and why


class TopStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs of this host at one moment, as `flatout top --json` prints them."""

    jobs: tuple[WatchStatus, ...]


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """Traces of a running job."""

    folder: Path
    ranks: tuple[int, ...]
    problems: dict[int, str]  # by rank: why it has no trace, or only part of one


class RecordingProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a recording of a running job is."""

    step: int  # that all ranks have made
    first_step: int  # to be traced
    num_steps: int
    num_traced: int  # ranks whose trace is written
    num_ranks: int


class LoaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a job's loader that can change from one epoch to the next."""

    num_workers: int
    prefetch_factor: int


AdaptationOutcome = Literal["would_change", "changed", "kept", "undone"]


class Adaptation(msgspec.Struct, frozen=True, kw_only=True):
    """What `flatout run --adapt` did to a job, or would do in a dry run. Null: unknown, or not measured yet."""

    outcome: AdaptationOutcome
    before: LoaderSettings
    after: LoaderSettings
    step: int
    wait_share: float  # the reason: the share of the step that ranks wait for batches
    expected_gain: float | None  # at most, as a share of the step
    before_s: float  # step time
    after_s: float | None = None
    measured_gain: float | None = None


NodeAction = Literal["none", "restart_job", "reset_gpu", "drain"]


class GpuAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """What the Xids of one GPU call for."""

    address: str
    action: NodeAction
    xid: int | None  # the gravest; null: the GPU is gone without one
    num_xids: int
    reason: str


class NodeSign(msgspec.Struct, frozen=True, kw_only=True):
    """A sign of a coming failure in the counters of a node. The action `none` only warns."""

    gpu: int | None  # null: of the node
    kind: str
    action: NodeAction
    value: float
    reason: str


class FailureProbability(msgspec.Struct, frozen=True, kw_only=True):
    """The probability that a node fails within the horizon."""

    low: float
    typical: float
    high: float
    is_assumed: bool  # nothing is published
    source: str


class DrainCost(msgspec.Struct, frozen=True, kw_only=True):
    """The expected GPU-hours of draining a node now and of waiting for its failure."""

    drain_gpu_h: float
    typical_wait_gpu_h: float
    wait_gpu_h: tuple[float, float]  # with the lowest and the highest probability of a failure
    probability: FailureProbability
    horizon_days: int
    pays: bool  # draining costs less with either
    may_pay: bool  # draining costs less with the highest


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a node, as `flatout watch node --json` prints it."""

    gpus: tuple[GpuAdvice, ...]  # those with Xids
    needs_action: bool  # a GPU is to be reset, or the node drained
    is_excerpt: bool  # the log does not begin at the start of the kernel
    cost: DrainCost | None  # null: no job to weigh it for
    signs: tuple[NodeSign, ...] = ()
    unread: dict[str, str] = {}  # by source: why it could not be read
