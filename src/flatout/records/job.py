"""The attribution of all ranks of a job together: matched collectives, arrivals, pipelines, charged waits."""

from __future__ import annotations

from collections import defaultdict

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.diagnosis import Blame
from flatout.records.events import Quality
from flatout.records.timeline import RankTimeline, Segments


class Match(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One collective (or one send with its receive): its kernel on each rank that has it."""

    operation: str
    group: str
    kernels: dict[int, int]  # rank -> row of its CommunicationKernels
    members: tuple[int, ...] | None  # of the group; None if no rank recorded them
    root: int | None
    num_bytes: int | None
    is_complete: bool  # the traces of all members are present
    is_pipeline: bool  # send and receive
    source: int | None = None  # the sending rank


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The end of the wait of each communication kernel on one rank, and the rank that it waits for."""

    until_ns: NDArray[np.int64]  # end of the wait, within [start, end]
    is_known: NDArray[np.bool_]
    late_rank: NDArray[np.int64]  # the last rank that it needed; -1 if it waits for no rank, or if that is unknown
    is_pipeline: NDArray[np.bool_]
    match: NDArray[np.int64]  # row of the deciding match; -1 without one


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a pipeline, inferred from its sends and receives."""

    stages: tuple[int, ...]  # ranks that send to each other, sorted by number, not by stage
    num_microbatches: int  # per step

    @property
    def ideal_bubble_share(self) -> float:
        """(p - 1) / (m + p - 1): the idle share of GPipe and 1F1B with equal stages (GPipe, arXiv:1811.06965)."""
        p = len(self.stages)
        return (p - 1) / (self.num_microbatches + p - 1)


class BlameSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One wait charged to one cause, with its time."""

    waiting_rank: int
    blamed_rank: int
    part: str
    start_ns: int
    wait_ns: float
    step: int | None  # number of the step; None before the first step
    match: int  # row of JobAttribution.matches


class JobAttribution(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """All ranks with aligned times; `segments` are the final parts of each rank."""

    timelines: tuple[RankTimeline, ...]  # by rank
    segments: dict[int, Segments]
    matches: tuple[Match, ...]
    arrivals: dict[int, Arrivals]
    pipelines: tuple[Pipeline, ...]
    slices: tuple[BlameSlice, ...]
    exposed_transfer_ns: dict[int, NDArray[np.int64]]  # by rank, for each of its communication kernels
    clock_offset_ns: dict[int, int]  # added to each rank's own times
    exposed_unsplit_ns: dict[int, NDArray[np.int64]]
    world_size: int | None
    missing_ranks: tuple[int, ...]
    quality: tuple[Quality, ...]
    device_segments: dict[int, dict[int, Segments]] = {}  # by rank and GPU, for the ranks that drive several GPUs

    def parts_between_ns(self, rank: int, start_ns: int, end_ns: int) -> NDArray[np.float64]:
        """Return the rank's nanoseconds by part between two times: the mean over its GPUs; shape (NUM_PARTS,)."""
        timelines = list(self.device_segments.get(rank, {}).values()) or [self.segments[rank]]
        return np.asarray(np.mean([segments.between_ns(start_ns, end_ns) for segments in timelines], axis=0))

    @property
    def blame(self) -> tuple[Blame, ...]:
        """Return the waits of complete steps (without steps, of the window), by waiting rank and cause, largest
        first.
        """
        has_steps = any(t.steps for t in self.timelines)
        sums: dict[tuple[int, int, str], float] = defaultdict(float)
        for piece in self.slices:
            if piece.step is not None or not has_steps:
                sums[piece.waiting_rank, piece.blamed_rank, piece.part] += piece.wait_ns
        return tuple(
            Blame(waiting_rank=waiting, blamed_rank=blamed, part=part, wait_s=ns / 1e9)
            for (waiting, blamed, part), ns in sorted(sums.items(), key=lambda item: -item[1])
            if ns >= 1
        )
