"""What `flatout bench` measured of a machine: the rates that it really delivers, and how far each can be trusted."""

from __future__ import annotations

from typing import Literal

import msgspec

Unit = Literal["FLOP/s", "B/s", "1/s"]
# queued_ahead: by the GPU's events, of calls queued before it came to them, as a job's host is ahead of its GPUs.
# as_called: by the host, of calls that a thread starts one after the other; what starting a short one costs is in it.
Timed = Literal["queued_ahead", "as_called"]


class LoadedLink(msgspec.Struct, frozen=True, kw_only=True):
    """The link of a GPU, read while copies kept it busy: an idle one is slow by design."""

    speed_gt_per_s: float  # of a lane
    width: int  # lanes
    best_speed_gt_per_s: float | None  # what both ends can; None where that is not told
    best_width: int | None
    source: str  # sysfs, NVML

    @property
    def is_below(self) -> bool:
        """Slower or narrower than both ends can."""
        return self.speed_gt_per_s < (self.best_speed_gt_per_s or 0) or self.width < (self.best_width or 0)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One rate. Repetitions of all measurements were interleaved, so that a slow minute falls on all of them alike."""

    name: str  # `matmul`, `memory_copy`, `all_reduce`, `storage_sequential_read`, ...
    value: float  # median of the repetitions; of a collective, its bus bandwidth as nccl-tests defines it
    unit: Unit
    spread: float  # from the first to the third quartile of the repetitions, in the same unit
    device: str  # as the vendor names it
    ranks: tuple[int, ...]  # who worked at it, at the same time
    n: int  # repetitions
    seconds: float  # median of one call, as `timed` says
    checked: str  # what its result was compared with
    timed: Timed = "as_called"
    seconds_as_called: float | None = None  # median of one call by the host, however `seconds` was timed
    size: int | None = None  # bytes: of a collective as nccl-tests counts them, of a copy, of a record that was read
    dtype: str | None = None
    shape: tuple[int, ...] | None = None  # m, n, k of a matrix product
    group: str | None = None  # of a collective: all, pairs, node, across
    threads: int | None = None
    backend: str = ""  # torch, numpy, gloo, nccl, ...
    note: str = ""  # what it does not show, as a cache that could not be emptied
    pcie: LoadedLink | None = None  # of a copy between host and GPU, during it; None: not read, or nothing shows it
    origin: str = "measured"


class CollectiveFit(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a call as latency_s + wire bytes / bandwidth; the curve itself is in `measurements`."""

    name: str
    group: str
    ranks: tuple[int, ...]
    latency_s: float  # of the GPUs where `timed` is queued_ahead; else mostly what starting a call costs the host
    bandwidth_bytes_per_s: float  # bus bandwidth
    median_error: float  # of the fitted time, as a share of the measured one, over the sizes
    num_sizes: int
    backend: str
    timed: Timed = "as_called"  # of the smallest size
    call_s: float | None = None  # of the smallest size, by the host, as called


class PeerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, rank or pair that is unlike its peers by the rule of `flatout doctor`."""

    name: str
    peer: str
    value: float
    usual: float  # median of the peers
    by: float  # value over usual, less 1
    unit: Unit


class WrongResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result that is not what it must be: its speed is no ceiling, and is left out."""

    name: str
    what: str
    ranks: tuple[int, ...]
    reason: str


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    taken_at: str  # UTC, ISO 8601
    took_s: float
    device: str
    num_devices: int  # ranks that measured, each with a device of its own; on CPUs they share one
    is_gpu: bool
    backend: str  # of the collectives
    software: str  # versions
    measurements: tuple[Measurement, ...]
    fits: tuple[CollectiveFit, ...] = ()
    peers: tuple[PeerDifference, ...] = ()
    peers_compared: dict[str, str] = {}  # of what -> how many, or why not
    wrong: tuple[WrongResult, ...] = ()
    cores_busy_by_others: float | None = None  # of this host, meanwhile; None where it cannot be told
    not_measured: dict[str, str] = {}  # what -> why

    def matmul_flops_per_s(self) -> dict[str, float]:
        """Of the best shape of each operand type: one GPU's (the median of several), or the whole CPU's."""
        best: dict[str, dict[tuple[int, ...], float]] = {}
        for one in self.measurements:
            if one.name == "matmul" and one.dtype is not None:
                by_ranks = best.setdefault(one.dtype, {})
                by_ranks[one.ranks] = max(by_ranks.get(one.ranks, 0.0), one.value)
        return {dtype: _median(list(rates.values())) for dtype, rates in best.items()}


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
