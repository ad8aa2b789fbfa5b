"""What `flatout profile` recorded, as read back from its folder: ranks with their steps, hosts with their use.

A number that is missing is None, and `Measured.reasons` or a problem says why.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.inside.protocol import File, StepKind
from flatout.records.events import Quality
from flatout.records.machine import Xid


class Steps(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All steps of a rank as columns of equal length, in order. Missing counts are NaN."""

    number: NDArray[np.int64]
    start_ns: NDArray[np.int64]  # unix time
    duration_s: NDArray[np.float64]
    loader_s: NDArray[np.float64]  # of it, waiting for batches
    checkpoint_s: NDArray[np.float64]  # of it, writing checkpoints on the training thread
    num_samples: NDArray[np.float64]
    num_tokens: NDArray[np.float64]
    num_backward: NDArray[np.int64]
    loss: NDArray[np.float64]  # the sum of what backward was called on; of short steps after the 512th, every eighth
    is_skipped: NDArray[np.bool_]  # by a GradScaler
    kind: tuple[str, ...]  # "": ordinary; what the recorder did else: first, flops, prepare, traced, recovery

    @property
    def is_ordinary(self) -> NDArray[np.bool_]:
        return np.array([kind == StepKind.ORDINARY for kind in self.kind], dtype=np.bool_)


class DeviceFacts(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    memory_bytes: int
    uuid: str | None = None


class RankRecording(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    rank: int
    world_size: int
    hostname: str
    device: DeviceFacts | None  # None: the CPU
    backend: str | None
    torch: str
    steps_from: str  # optimizer | batch | backward
    steps: Steps
    settled_step: int | None  # None: the job ended first
    untraced_step_s: float | None  # median of the settled steps before the recorder disturbed any
    num_untraced_steps: int
    untraced_spread_s: float | None = None  # their standard deviation, outliers apart; None: of fewer than five
    traced_steps: tuple[int, ...]
    recorder_s: float  # what preparing, ending and writing the trace took, between steps
    flops_by_type: dict[str, float] | None  # of one step, as executed: {"bf16": 1.2e15}
    flops_problem: str | None
    peak_memory_bytes: int | None  # of the caching allocator, on a GPU
    num_alloc_retries: int | None
    ended_by: str | None  # exit, or the name of an exception; None: without a word, as by SIGKILL
    problems: tuple[str, ...]


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU while the job trained: means, unless said. Rates are in bytes a second, both directions apart."""

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


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """One host while the job trained: means, unless said."""

    hostname: str
    num_samples: int
    cores_allowed: float
    cores_busy: float | None = None  # of those allowed
    max_cores_busy: float | None = None
    cores_busy_by_others: float | None = None  # of those allowed, by processes outside the job, Flatout's left out
    throttled_s_per_s: float | None = None  # by the control group's quota
    memory_used_bytes: float | None = None  # highest
    memory_limit_bytes: float | None = None
    disk_read_bytes_per_s: float | None = None
    disk_write_bytes_per_s: float | None = None
    disk_busy_share: float | None = None
    network_received_bytes_per_s: float | None = None
    network_sent_bytes_per_s: float | None = None
    gpus: tuple[GpuUse, ...] = ()
    xids: tuple[Xid, ...] | None = None  # of the whole run, each once; None: nobody watched


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The command on one host, as the parent process saw it: `host-<hostname>.json`."""

    schema: str = "flatout/recording-host"
    version: int = 1
    tool_version: str
    command: tuple[str, ...]  # with secrets masked
    run_id: str
    hostname: str
    is_light: bool
    start_unix_s: float
    end_unix_s: float | None = None  # None: it still runs, or its parent was killed
    exit_code: int | None = None
    signal: int | None = None
    num_pythons: int = 0  # processes into which the recorder was loaded
    num_torch: int = 0  # of them, those that imported torch
    num_old_pythons: int = 0  # of those, too old to record
    num_left_running: int = 0  # processes that the command did not wait for, where no rank had begun to train
    problems: tuple[str, ...] = ()


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a trace cannot know. Of the settled steps without the recorder's work."""

    step_s: float | None  # median over steps, mean over ranks
    loader_s: float | None  # of it in the loader, the slowest rank
    samples_per_s: float | None  # of all ranks, each taken to load samples of its own
    tokens_per_s: float | None
    flops_per_step: float | None  # of all ranks
    mfu: float | None  # time at the peak rates over the step time
    peak_memory_bytes: int | None  # the highest of all ranks
    num_alloc_retries: int | None
    reasons: dict[str, str] = {}  # why a number is missing
    step_spread_s: float | None = None  # from step to step, outliers apart: a standard deviation, mean over ranks
    num_untraced_steps: int = 0  # that `step_s` is of, on the rank with the fewest
    mfu_against: str | None = None  # whose peak rates: `vendor`, or `measured` by `flatout bench`


class Recording(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    path: str
    ranks: tuple[RankRecording, ...]  # by rank
    hosts: tuple[HostUse, ...]
    runs: tuple[Run, ...]
    measured: Measured
    problems: tuple[Quality, ...]
    attempt: int = 0  # of torchrun's restarts: the one that the ranks are of
    num_attempts: int = 1  # that were recorded
    traced_ranks: tuple[int, ...] = ()  # whose trace is in the folder

    @property
    def traces_path(self) -> str:
        """The folder with the traces of that attempt."""
        return f"{self.path}/{File.ATTEMPTS}/{self.attempt}" if self.attempt else self.path

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        world_size = max((rank.world_size for rank in self.ranks), default=0)
        return tuple(sorted(set(range(world_size)) - {rank.rank for rank in self.ranks}))
