"""All ranks of a job attributed together: matched collectives, arrivals, pipelines, charged waits."""

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
    members: tuple[int, ...] | None  # of the group; None where no rank recorded them
    root: int | None
    num_bytes: int | None
    is_complete: bool  # all members are here
    is_pipeline: bool  # send and receive
    source: int | None = None  # the sending rank


class Arrivals(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """For each communication kernel of one rank: until when it waits, and for whom."""

    until_ns: NDArray[np.int64]  # end of the wait, within [start, end]
    is_known: NDArray[np.bool_]
    late_rank: NDArray[np.int64]  # the last rank that it needed, -1 where it waits for nobody or that is unknown
    is_pipeline: NDArray[np.bool_]
    match: NDArray[np.int64]  # row of the list of matches that decided, -1 where none


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """The shape of a pipeline as its sends and receives show it."""

    stages: tuple[int, ...]  # the ranks that send to each other, by number; not the order of the stages
    num_microbatches: int  # a step

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
    step: int | None  # number of the step, None in the lead-in
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

    @property
    def blame(self) -> tuple[Blame, ...]:
        """Whole steps only (without steps, the window), summed by waiting rank and cause, largest first."""
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
