"""One rank's trace as columns: the output of every reader and the input of every analysis.

A reader calls `EventTable.check()` before it returns, so that later stages need no checks. Columns are numpy arrays of
equal length `n`, sorted by `(start_ns, -duration_ns)`; repeated texts are dictionary-encoded. A null in an integer
column is `NULL` (-1).
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec
import numpy as np
from numpy.typing import NDArray

NULL = -1


class Kind(IntEnum):
    """The kind of an event, independent of how vendors and versions of the profiler name its category."""

    CPU_OP = 0  # cpu_op, Operator, hpu_op
    USER_ANNOTATION = 1  # user_annotation on the host: ProfilerStep#3, Optimizer.step#..., nccl:all_reduce
    GPU_ANNOTATION = 2  # gpu_user_annotation: a host annotation shown on the device's timeline, never work
    RUNTIME = 3  # cuda_runtime, cuda_driver, xpu_runtime, mtia_runtime, privateuse1_runtime, Runtime, ...
    KERNEL = 4  # kernel, Kernel, mtia_ccp_events other than annotations
    MEMCPY = 5  # gpu_memcpy, Memcpy
    MEMSET = 6  # gpu_memset, Memset
    SYNC = 7  # cuda_sync, xpu_sync: a wait shown on the device's timeline, never work
    PYTHON = 8  # python_function: only those that `read` keeps (data loaders, checkpoints)
    OVERHEAD = 9  # overhead: "Command Buffer Full", "Lazy Function Loading", ...


GPU_WORK = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)


class TraceFormat(StrEnum):
    """The format of the file that a table was read from."""

    KINETO = "kineto"  # torch.profiler
    XPLANE = "xplane"  # JAX, TensorFlow, PyTorch/XLA
    JAX_TRACE = "jax-trace"  # the trace.json.gz that JAX writes with an XPlane
    NSYS = "nsys"  # SQLite of Nsight Systems
    HOROVOD = "horovod"  # HOROVOD_TIMELINE
    ROCPROF = "rocprof"  # JSON of rocprofv3
    ROCPD = "rocpd"  # SQLite of rocprofv3


class CollectiveArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The profiler's record of one collective or point-to-point call (`record_param_comms`, NCCL kernels)."""

    operation: str  # as recorded: allreduce, _allgather_base, _reduce_scatter_base, broadcast, send, recv, wait, ...
    group_name: str | None = None
    group_description: str | None = None
    group_ranks: tuple[int, ...] | None = None  # None if absent or truncated ("...")
    group_size: int | None = None
    dtype: str | None = None
    num_input_elements: int | None = None
    num_output_elements: int | None = None
    src_rank: int | None = None
    dst_rank: int | None = None


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """Something lost, repaired or uncertain in the input, and its effect on the result."""

    problem: str
    effect: str
    rank: int | None = None
    # The highest confidence (medium or inconclusive) that findings about these ranks can have; None: no limit.
    max_confidence: str | None = None


class TraceMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a trace file."""

    path: str  # as shown to the user: file, or archive and member
    rank: int | None = None  # from distributedInfo, else the file name, else None
    world_size: int | None = None
    backend: str | None = None
    device_name: str | None = None  # of the device that this rank ran on; None for the CPU
    device: int | None = None  # the GPU that this rank used most, by its number on the machine
    num_devices: int = 0  # GPUs of the machine that the trace lists
    base_ns: int = 0  # baseTimeNanoseconds, already added to start_ns
    hostname: str | None = None
    process: str | None = None  # the id of the process whose operators these are; None without operators
    start_ns: int | None = None  # of the first event
    end_ns: int | None = None  # of the last event
    fingerprint: str | None = None  # of the times of all events: equal for copies of a trace
    format: TraceFormat = TraceFormat.KINETO
    runs_beside_host: bool = False  # without a GPU: operators run while the thread that marks steps does other things
    knows_host: bool = True  # False: the file says nothing of what the host does between its events


class EventTable(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The events of one rank. Times are integer nanoseconds, `start_ns` with the file's base time added."""

    meta: TraceMeta
    names: tuple[str, ...]  # dictionary of `name`
    threads: tuple[tuple[str, str], ...]  # dictionary of `thread`: (pid, tid) as text
    shapes: tuple[str, ...]  # dictionary of `shape`: the JSON text of "Input Dims", e.g. "[[8,1024],[]]"
    collectives: tuple[CollectiveArgs, ...]  # dictionary of `collective`
    quality: tuple[Quality, ...] = ()
    dropped: tuple[tuple[str, int], ...] = ()  # kinds of events that the reader skips by design, with their counts

    kind: NDArray[np.uint8]  # Kind
    name: NDArray[np.int32]  # index into names, never null
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]  # >= 0
    thread: NDArray[np.int32]  # index into threads; for GPU work too (its device and stream row)
    device: NDArray[np.int32]  # null on the host
    stream: NDArray[np.int64]  # null on the host
    correlation: NDArray[np.int64]  # joins RUNTIME with GPU work; null if absent
    external_id: NDArray[np.int64]  # joins CPU_OP with RUNTIME and GPU work; null if absent
    num_bytes: NDArray[np.int64]  # of copies and sets; null if absent
    shape: NDArray[np.int32]  # index into shapes; null if not recorded
    collective: NDArray[np.int32]  # index into collectives; null without collective arguments
    sequence: NDArray[np.int64]  # "Seq" of a collective; null if absent

    @property
    def num_events(self) -> int:
        return len(self.kind)

    @property
    def end_ns(self) -> NDArray[np.int64]:
        return self.start_ns + self.duration_ns

    def is_kind(self, *kinds: Kind) -> NDArray[np.bool_]:
        """Return True for events of one of the kinds; shape (n,)."""
        table = np.zeros(256, dtype=np.bool_)
        table[list(kinds)] = True
        return table[self.kind]

    def name_matches(self, matching: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return `matching[name]` for each event. `matching` has one entry per name, so a test runs once per name."""
        return matching[self.name]

    def check(self) -> None:
        """Raise AssertionError if the table violates its schema, which is a bug in the reader, never a user error."""
        n = len(self.kind)
        for column, dtype in COLUMNS.items():
            values = getattr(self, column)
            assert values.dtype == dtype and values.shape == (n,), (column, values.dtype, values.shape)
        if n:
            assert self.kind.max() <= max(Kind) and self.duration_ns.min() >= 0
            assert self.name.min() >= 0 and self.name.max() < len(self.names)
            assert (np.diff(self.start_ns) >= 0).all()
        for column, dictionary in (
            ("thread", self.threads),
            ("shape", self.shapes),
            ("collective", self.collectives),
        ):
            values = getattr(self, column)
            assert not n or (values.min() >= NULL and values.max() < len(dictionary)), column


class OriginalEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An event of any phase and category, as it is in the file; only `--perfetto` reads these."""

    fields: dict[str, msgspec.Raw]  # the JSON text of each field
    phase: str  # of the Trace Event Format: X, i, s, f, M, C, ...
    process: int | str
    thread: int | str
    kind: Kind | None  # None if no analysis uses it
    start_ns: int | None  # with the file's base time added; None without a usable time
    duration_ns: int  # 0 if missing or negative


COLUMNS: dict[str, np.dtype[np.generic]] = {
    "kind": np.dtype(np.uint8),
    "name": np.dtype(np.int32),
    "start_ns": np.dtype(np.int64),
    "duration_ns": np.dtype(np.int64),
    "thread": np.dtype(np.int32),
    "device": np.dtype(np.int32),
    "stream": np.dtype(np.int64),
    "correlation": np.dtype(np.int64),
    "external_id": np.dtype(np.int64),
    "num_bytes": np.dtype(np.int64),
    "shape": np.dtype(np.int32),
    "collective": np.dtype(np.int32),
    "sequence": np.dtype(np.int64),
}
