"""One rank's steps as a chain of host nodes and the GPU work that they launch; `predict/` replays it.

The launching threads of a rank take turns (a backward pass runs on a separate thread while the training thread waits),
so they form one chain. Host time between two nodes is kept by its use. Time in which the GPU blocked the host is not
included; it is represented as a wait for the end of a piece of work. Times are integer ns since `origin_ns`.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec
import numpy as np
from numpy.typing import NDArray


class TrackNode(IntEnum):
    LAUNCH = 0
    SYNC = 1  # a synchronising call
    COPY_SYNC = 2  # a copy call that returned when its copy was complete (pageable memory)
    FULL = 3  # a launch blocked by a full command buffer
    FREE = 4  # device memory is freed, which drains the GPU
    MARK = 5  # a step starts; the last mark: the last step ends


class Spent(IntEnum):
    """The use of host time that is not blocked by the GPU."""

    HOST = 0  # launch work and Python
    OPTIMIZER = 1
    ZERO_GRAD = 2
    DATA_LOADING = 3
    CHECKPOINT = 4
    ALLOCATOR = 5
    COMPUTE = 6  # operators of a job on the CPU
    ACCUMULATE = 7  # gradients are added to existing ones


# The recorder slows these uses, which consist of many short calls, but not waits for a device, a disk or a worker.
HOST_WORK = (Spent.HOST, Spent.OPTIMIZER, Spent.ZERO_GRAD, Spent.ACCUMULATE)


class GpuWorkKind(IntEnum):
    OTHER = 0  # a kernel
    MATMUL = 1
    PLAIN_MATMUL = 2  # without tensor cores
    COMMUNICATION = 3
    COPY_TO_DEVICE = 4
    PAGEABLE_TO_DEVICE = 5
    COPY_TO_HOST = 6
    COPY_ON_DEVICE = 7
    SET = 8


class RankTrack(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Two tables: host nodes in the order of time, and GPU work in the order of launch."""

    origin_ns: int
    # Host nodes.
    node: NDArray[np.uint8]  # Node
    node_ns: NDArray[np.int64]
    spent_ns: NDArray[np.int64]  # since the previous node; shape (nodes, len(Spent))
    waits_for: NDArray[np.int64]  # row of the work that the host waited for; -1: none
    tail_ns: NDArray[np.int64]  # from that end until the call returned
    # GPU work (for a job on the CPU, its collectives).
    work: NDArray[np.uint8]  # GpuWorkKind
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    launched_by: NDArray[np.int64]  # row of the node; -1: launched before the first step
    stream: NDArray[np.int64]
    after: NDArray[np.int64]  # row of the work on another stream that had to end first; -1: none
    communication: NDArray[np.int64]  # row of CommunicationKernels; -1: not communication
    phase: NDArray[np.uint8]  # Spent during the launch: OPTIMIZER, ZERO_GRAD, ACCUMULATE, CHECKPOINT or HOST
    num_bytes: NDArray[np.int64]  # of copies and sets, 0 elsewhere

    @property
    def num_steps(self) -> int:
        return int((self.node == TrackNode.MARK).sum()) - 1
