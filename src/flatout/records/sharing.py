"""What a share of a GPU delivers, and whether two commands gain from sharing one."""

from __future__ import annotations

from typing import Literal

import msgspec

SliceKind = Literal["mig", "mps", "hami", "whole"]
Work = Literal["matmul", "memory_copy"]


class GpuSlice(msgspec.Struct, frozen=True, kw_only=True):
    """What this process was given of a GPU. Null: not stated."""

    kind: SliceKind  # whole: the GPU as it is, which several processes share by time slices
    asked_share: float | None  # of the compute units
    source: str  # what said so


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """The speed of a process among others, as a share of its speed alone: a median of repetitions, and its range."""

    work: Work
    beside: Work
    num_processes: int  # together, this one among them
    asked_share: float  # of one process
    delivered_share: float
    low: float
    high: float


class PairSharing(msgspec.Struct, frozen=True, kw_only=True):
    """Two commands alone and together: the speed of each together with the other, as a share of its speed alone."""

    commands: tuple[str, str]  # secrets masked
    unit: Literal["step", "command"]  # what alone_s is the time of
    alone_s: tuple[float, float]
    shares: tuple[float, float]  # means over the runs together
    sums: tuple[
        float, ...
    ]  # of both shares, in each run together; above 1 the two get more done than one after the other
    verdict: Literal["gains", "loses", "undecided"]


class SharingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `flatout bench --share`."""

    host: str
    device: str
    gpu_slice: GpuSlice
    order: str  # of the runs
    num_repeats: int
    alone: dict[Work, float] = {}  # rates of one process alone: FLOP/s, B/s
    whole_share: float | None = None  # of the whole GPU's matrix multiplication, by its saved ceilings
    delivered: tuple[Beside, ...] = ()
    pair: PairSharing | None = None
