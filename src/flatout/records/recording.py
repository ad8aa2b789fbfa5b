"""A recording of `flatout profile`, read back from its folder: ranks with their steps, hosts with their use.

A missing number is None, and `Measured.reasons` or a problem says why.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.inside.protocol import File, StepKind
from flatout.records.events import Quality
from flatout.records.machine import Xid
from flatout.records.start_costs import StartTimes

MIN_SHARE_OF_CALLS = 0.9  # of the batches of a loader: with fewer calls, the script does more than infer


class Steps(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All steps of a rank, in order, as columns of equal length. Missing counts are NaN."""

    number: NDArray[np.int64]
    start_ns: NDArray[np.int64]  # unix time
    duration_s: NDArray[np.float64]
    loader_s: NDArray[np.float64]  # part of the duration spent waiting for batches
    checkpoint_s: NDArray[np.float64]  # part of the duration spent writing checkpoints on the training thread
    # Parts of the duration that are exclusive of each other and of `checkpoint_s`; None: recorded before they existed.
    loader_start_s: NDArray[np.float64] | None = None  # making a loader's iterator and waiting for its first batch
    evaluation_s: NDArray[np.float64] | None = None
    collection_s: NDArray[np.float64] | None = None  # Python's garbage collection
    compilation_s: NDArray[np.float64] | None = None
    logging_s: NDArray[np.float64] | None = None
    num_full_collections: NDArray[np.float64] | None = None
    num_loader_ends: NDArray[np.float64] | None = None  # number of times that a loader ran out of batches
    evaluation_loader_s: NDArray[np.float64] | None = None  # part of `evaluation_s` in which a loader starts or ends
    model_s: NDArray[np.float64] | None = None  # inside the model's call, if each step is one; NaN: unknown
    num_known_tokens: NDArray[np.float64] | None = None  # of the call's first sequence, as in the call before
    num_alloc_retries: NDArray[np.float64] | None = None  # so far; NaN where it was not read
    num_samples: NDArray[np.float64]
    num_tokens: NDArray[np.float64]
    num_backward: NDArray[np.int64]
    loss: NDArray[
        np.float64
    ]  # sum of the values that backward was called on; after the 512th short step, only every eighth step
    is_skipped: NDArray[np.bool_]  # a GradScaler skipped the update
    kind: tuple[str, ...]  # "" for ordinary steps, else the recorder's work: first, flops, prepare, traced, recovery

    @property
    def is_ordinary(self) -> NDArray[np.bool_]:
        return np.array([kind == StepKind.ORDINARY for kind in self.kind], dtype=np.bool_)


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    memory_bytes: int
    uuid: str | None = None


class StallWindowSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of the second trace of a rank."""

    steps: tuple[int, ...]
    due: int  # the step that was due to stall
    period: int  # number of steps from stall to stall, as the recorder saw it


class RankRecording(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    rank: int
    world_size: int
    hostname: str
    device: DeviceFacts | None  # None: the CPU
    backend: str | None
    torch: str
    steps_from: str  # optimizer | batch | backward | forward
    steps: Steps
    settled_step: int | None  # first step after warm-up; None: the job ended before
    untraced_step_s: float | None  # median of the steps after warm-up, before the recorder affected any
    num_untraced_steps: int
    untraced_spread_s: float | None = None  # their standard deviation without outliers; None: fewer than five steps
    traced_steps: tuple[int, ...]  # of the first window
    recorder_s: float  # time between steps for preparing, stopping and writing the trace
    flops_by_type: dict[str, float] | None  # per step, as executed: {"bf16": 1.2e15}
    flops_problem: str | None
    peak_memory_bytes: int | None  # of the caching allocator, on a GPU
    num_alloc_retries: int | None
    ended_by: str | None  # exit, or the name of an exception; None: unknown, as after SIGKILL
    problems: tuple[Quality, ...]
    stall_window: StallWindowSteps | None = None  # the second window
    disturbed_from: int | None = None  # first step that the recorder slows down; None: no plan was made
    started: StartTimes | None = None  # None: it never settled, or its recorder was too old
    is_pooled: bool = False  # several threads call the model at the same time: a step ends with the end of each call
    stopped_by: str | None = None  # the reason for which the recorder stopped the job; None: it did not
    loader_workers: int | None = None  # of the loader of its batches; None: unknown

    @property
    def only_infers(self) -> bool:
        """Whether its steps are calls without gradients, or batches of a loader that such calls take."""
        if self.steps_from == "forward":
            return True
        steps = self.steps
        if self.steps_from != "batch" or steps.model_s is None or steps.num_backward.any():
            return False
        return bool(np.isfinite(steps.model_s).mean() >= MIN_SHARE_OF_CALLS)


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU while the job trained. Values are means unless stated; rates are per direction."""

    index: int
    name: str | None = None
    uuid: str | None = None
    busy_share: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: float | None = None  # highest
    sm_clock_hz: float | None = None
    max_sm_clock_hz: float | None = None
    memory_used_bytes: float | None = None  # highest
    throttle_share: dict[str, float] = {}  # share of the samples, by reason
    pcie_sent_bytes_per_s: float | None = None
    pcie_received_bytes_per_s: float | None = None
    nvlink_sent_bytes_per_s: float | None = None
    nvlink_received_bytes_per_s: float | None = None
    peer_path: str | None = None  # the slowest to another GPU of the host: nvlink, pcie or host (through its memory)


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """One host while the job trained. Values are means unless stated."""

    hostname: str
    num_samples: int
    cores_allowed: float
    cores_busy: float | None = None  # of those allowed
    max_cores_busy: float | None = None
    cores_busy_by_others: float | None = None  # of those allowed; busy with processes other than the job and Flatout
    throttled_s_per_s: float | None = None  # by the cgroup's CPU quota
    memory_used_bytes: float | None = None  # highest
    memory_limit_bytes: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    disk_busy_share: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None
    gpus: tuple[GpuUse, ...] = ()
    xids: tuple[Xid, ...] | None = None  # during the run, each once; None: not monitored


class HostRecording(msgspec.Struct, frozen=True, kw_only=True):
    """The command on one host, as its parent process saw it: `host-<hostname>.json`."""

    schema: str = "flatout/recording-host"
    version: int = 1
    tool_version: str
    command: tuple[str, ...]  # with secrets masked
    run_id: str
    hostname: str
    is_light: bool
    start_unix_s: float
    end_unix_s: float | None = None  # None: the command still runs, or its parent was killed
    exit_code: int | None = None
    signal: int | None = None
    num_pythons: int = 0  # processes into which the recorder was loaded
    num_torch: int = 0  # number of these that imported torch
    num_old_pythons: int = 0  # number of these whose Python is too old to record
    num_left_running: int = 0  # processes that the command did not wait for, if no rank had started training
    problems: tuple[str, ...] = ()


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers that a trace does not contain. Rates and MFU are totals of the recording; `regular_*`: without stalls."""

    step_s: float | None  # median over the steps right before the trace, mean over ranks
    loader_s: float | None  # part of the step in the loader, on the slowest rank
    samples_per_s: float | None  # of all ranks, assuming that each loads different samples
    tokens_per_s: float | None
    flops_per_step: float | None  # of all ranks
    mfu: float | None  # compute time at the peak rates / mean step time
    peak_memory_bytes: int | None  # maximum over ranks
    num_alloc_retries: int | None
    reasons: dict[str, str] = {}  # why a number is missing
    step_spread_s: float | None = None  # standard deviation over steps without outliers, mean over ranks
    num_untraced_steps: int = 0  # steps behind `step_s`, on the rank with the fewest
    mfu_against: str | None = None  # source of the peak rates: `vendor`, or `measured` by `flatout bench`
    num_steps: int = 0  # of the recording
    mean_step_s: float | None = None  # over all steps with their stalls, without warm-up and the recorder's work
    regular_step_s: float | None = None  # median over all undisturbed steps
    spike_share: float | None = None  # of the undisturbed steps: those that took 1.5 times as long as their neighbours
    first_wait_s: float | None = None  # of the first step for its batch; included in `mean_step_s`
    samples_per_step: float | None = None  # of all ranks
    tokens_per_step: float | None = None
    regular_samples_per_s: float | None = None
    regular_tokens_per_s: float | None = None
    regular_mfu: float | None = None


class Recording(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    path: str
    ranks: tuple[RankRecording, ...]  # by rank
    hosts: tuple[HostUse, ...]
    runs: tuple[HostRecording, ...]
    measured: Measured
    problems: tuple[Quality, ...]
    attempt: int = 0  # the attempt of torchrun that the ranks belong to
    num_attempts: int = 1  # recorded attempts
    traced_ranks: tuple[int, ...] = ()  # ranks with a trace in the folder
    stall_traces: tuple[tuple[int, str], ...] = ()  # ranks with a second trace, of a stall, and its path

    @property
    def traces_path(self) -> str:
        """Return the folder with the traces of the attempt."""
        return f"{self.path}/{File.ATTEMPTS}/{self.attempt}" if self.attempt else self.path

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        world_size = max((rank.world_size for rank in self.ranks), default=0)
        return tuple(sorted(set(range(world_size)) - {rank.rank for rank in self.ranks}))
