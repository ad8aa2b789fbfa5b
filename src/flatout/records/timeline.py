"""The attribution of one rank's trace.

`RankTimeline` is small enough to be sent between processes; the event table stays in the process that read it.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.diagnosis import Part
from flatout.records.events import Quality, TraceMeta
from flatout.records.track import RankTrack

NUM_PARTS = len(Part)


class StepSpan(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a rank: from the end of the GPU work launched before it to the start of the next step."""

    number: int
    start_ns: int
    end_ns: int


class StartUp(msgspec.Struct, frozen=True, kw_only=True):
    """First steps of a trace that are not counted: far longer than all later ones, for a reason that does not recur."""

    steps: tuple[int, ...]  # their numbers
    main_part: Part  # that makes most of the difference


class Segments(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A rank's window, divided into contiguous segments with exactly one part each. Columns of equal length."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    part: NDArray[np.uint8]

    def cumulative_ns(self, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nanoseconds per part from the window's start to each time (clipped); shape (k, NUM_PARTS)."""
        if len(self.part) == 0:
            return np.zeros((len(times_ns), NUM_PARTS), dtype=np.int64)
        lengths = self.end_ns - self.start_ns
        clipped, index = self._place(times_ns)
        result = np.empty((len(times_ns), NUM_PARTS), dtype=np.int64)
        for part in range(NUM_PARTS):  # one part at a time: a matrix of all segments by all parts would be large
            cumulative = np.cumsum(np.where(self.part == part, lengths, 0))
            result[:, part] = cumulative[index] - np.where(self.part[index] == part, self.end_ns[index] - clipped, 0)
        return result

    def cumulative_part_ns(self, part: Part, times_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the nanoseconds of one part from the window's start to each time; shape (k,)."""
        if len(self.part) == 0:
            return np.zeros(len(times_ns), dtype=np.int64)
        clipped, index = self._place(times_ns)
        cumulative = np.cumsum(np.where(self.part == part, self.end_ns - self.start_ns, 0))
        return np.asarray(cumulative[index] - np.where(self.part[index] == part, self.end_ns[index] - clipped, 0))

    def between_ns(self, start_ns: int, end_ns: int) -> NDArray[np.int64]:
        """Return the nanoseconds per part between two times; shape (NUM_PARTS,)."""
        first = int(np.searchsorted(self.end_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        lengths = np.minimum(self.end_ns[first:last], end_ns) - np.maximum(self.start_ns[first:last], start_ns)
        return np.bincount(self.part[first:last], weights=lengths, minlength=NUM_PARTS).astype(np.int64)

    def _place(self, times_ns: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the times clipped to the window, and the segment of each."""
        clipped = np.clip(times_ns, self.start_ns[0], self.end_ns[-1])
        index = np.clip(np.searchsorted(self.start_ns, clipped, side="right") - 1, 0, len(self.part) - 1)
        return clipped, index


class CommunicationCall(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of a communication kernel: a collective, or one of its batched sends and receives."""

    kernel: int  # row of CommunicationKernels
    operation: str  # all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter, barrier,
    #                 send, recv, or unknown
    group: str | None  # process group name; None if not recorded
    ranks: tuple[int, ...] | None  # of the group; None if not recorded
    group_size: int | None
    root: int | None  # of broadcast, reduce, gather, scatter
    peer: int | None  # of send and recv
    num_elements: int | None  # the larger of input and output
    num_bytes: int | None
    sequence: int | None
    group_description: str | None = None  # as the job named it, e.g. TENSOR_MODEL_PARALLEL_GROUP, mesh_tp


class CommunicationKernels(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The communication work of one rank, by start. Columns of equal length."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    launched_ns: NDArray[np.int64]  # start of the launching call; BEFORE_RECORDING without one
    stream: NDArray[np.int64]
    calls: tuple[CommunicationCall, ...]  # at least one per kernel, sorted by kernel
    # When the host launched the work that follows a kernel; BEFORE_RECORDING if it is unknown, if nothing follows, or
    # if the host itself waited for the kernel. What was launched only after the kernel's end did not wait for it.
    next_launch_ns: NDArray[np.int64] | None = None  # None: no GPU

    @property
    def num_kernels(self) -> int:
        return len(self.start_ns)


BEFORE_RECORDING = np.iinfo(np.int64).min


class CallCount(msgspec.Struct, frozen=True, kw_only=True):
    """Runtime calls of one kind inside complete steps."""

    count: int
    host_s: float  # time inside the calls


class CallFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of a model in the trace of a script that only infers, in seconds over complete steps."""

    num_calls: int
    model_parts_s: tuple[float, ...]  # by `Part`, while a call runs
    between_parts_s: tuple[float, ...]  # by `Part`, between two calls
    between_operators_s: dict[str, float]  # the operators with most time between calls
    other_models_s: dict[str, float]  # between calls, of other models with parameters, by class
    num_operators: int  # within calls, without those that contain others
    operators_s: float
    repeats_excess_s: float  # part of it: beyond the fastest call of the same operator with the same shapes


class RankFacts(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Facts about a rank that rules need beyond its parts, summed over complete steps (without steps, the window)."""

    num_host_events: int  # recorded by the profiler on the launching threads
    host_s: float  # time between the host's step marks
    host_blocked_s: (
        float  # part of it in synchronising calls, full command buffers, pageable copies, loaders, checkpoints
    )
    num_launches: int
    num_kernels: int  # without communication
    num_short_kernels: int
    short_kernel_saving_s: float  # time that one kernel would save, compared with dense runs of short ones
    matmul_s: float
    plain_matmul_s: float  # matrix multiplications in kernels without tensor-core instructions
    plain_matmul_names: tuple[str, ...]
    sync_calls: dict[str, CallCount]  # by calling operator, else by the name of the call
    allocator_calls: dict[str, CallCount]
    pageable_copy: CallCount  # copies between pageable host memory and the device
    pageable_bytes: int
    copy_bytes: dict[str, int]  # by direction: HtoD, DtoH, DtoD, PtoP
    loader: CallCount
    loader_name: str | None
    checkpoint_copy_s: float  # exposed copies inside checkpoint intervals
    optimizer_s: float  # host time inside Optimizer.step
    optimizer_gpu_s: float  # GPU time of the kernels that it launched
    num_optimizer_steps: int
    num_optimizer_launches: int
    num_passes: int  # forward and backward passes
    communication_pass: NDArray[np.int64]  # the pass that launched each communication kernel; -1: before all
    input_elements: tuple[int | None, ...]  # per step: elements of the largest embedding or first-layer input
    calls: CallFacts | None = None  # None: not a script that only infers, or its calls are not marked
    wrappers: tuple[str, ...] = ()  # what distributes the model, as event names show: ddp, fsdp, deepspeed


class DeviceWork(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The work of one GPU of a rank that drives several."""

    device: int
    segments: Segments  # of the rank's window: compute, communication_unsplit, memory_copy, or unattributed while idle

    @property
    def busy_ns(self) -> int:
        is_busy = self.segments.part != Part.UNATTRIBUTED
        return int((self.segments.end_ns - self.segments.start_ns)[is_busy].sum())


class RankTimeline(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One rank, attributed without the other ranks: exposed communication is still unsplit."""

    meta: TraceMeta
    rank: int
    has_gpu: bool  # the trace has GPU events
    first_event_ns: int
    window_start_ns: int
    window_end_ns: int
    steps: tuple[StepSpan, ...]
    segments: Segments
    communication: CommunicationKernels
    quality: tuple[Quality, ...]
    facts: RankFacts | None = None
    track: RankTrack | None = None  # None without steps
    devices: tuple[DeviceWork, ...] = ()  # of a process that drives several GPUs; empty for one GPU or none
    start_up: StartUp | None = None  # None: all steps of the trace are counted
    is_device_known: bool = True  # False: the trace has no GPU events, but shows that the rank can have used a GPU

    @property
    def first_step_ns(self) -> int:
        """Return the start of the first step, or of the window if there are no steps."""
        return self.steps[0].start_ns if self.steps else self.window_start_ns
