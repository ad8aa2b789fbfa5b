"""The measurements by `flatout bench`: the rates that a machine delivers, and how reliable each rate is."""

from __future__ import annotations

from typing import Literal

import msgspec

Unit = Literal["FLOP/s", "B/s", "1/s"]
# queued_ahead: timed by GPU events, with calls queued ahead of the GPU, as in a job whose host runs ahead.
# as_called: timed by the host, with calls started one after another; includes the cost of starting a short call.
Timed = Literal["queued_ahead", "as_called"]


class LoadedLink(msgspec.Struct, frozen=True, kw_only=True):
    """The PCIe link of a GPU, read while copies kept it busy: an idle link slows down by design."""

    speed_gt_per_s: float  # per lane
    width: int  # lanes
    best_speed_gt_per_s: float | None  # highest speed of both ends; None if unknown
    best_width: int | None
    source: str  # sysfs, NVML

    @property
    def is_below(self) -> bool:
        """Whether the link is slower or narrower than both ends support."""
        return self.speed_gt_per_s < (self.best_speed_gt_per_s or 0) or self.width < (self.best_width or 0)


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One rate. Repetitions of all measurements are interleaved, so that a slow minute affects all of them equally."""

    name: str  # `matmul`, `memory_copy`, `all_reduce`, `storage_sequential_read`, ...
    value: float  # median of the repetitions; for a collective, the bus bandwidth as nccl-tests defines it
    unit: Unit
    spread: float  # interquartile range of the repetitions, in the same unit
    device: str  # the vendor's name
    ranks: tuple[int, ...]  # ranks that ran it at the same time; of a pair, the sender first
    n: int  # repetitions
    seconds: float  # median of one call, timed as `timed` says
    checked: str  # reference of the result's check
    timed: Timed = "as_called"
    seconds_as_called: float | None = None  # median of one call, timed by the host
    size: int | None = None  # bytes: of a collective as nccl-tests counts them, of a copy, or of a record read
    dtype: str | None = None
    shape: tuple[int, ...] | None = None  # m, n, k of a matrix multiplication
    group: str | None = None  # ranks of a collective: all, pairs, node, across; of a pair: its turn
    threads: int | None = None
    backend: str = ""  # torch, numpy, gloo, nccl, ...
    note: str = ""  # a limitation, such as a cache that could not be emptied
    pcie: LoadedLink | None = None  # during a copy between host and GPU; None: not available
    # Over one to two seconds of the largest multiplication of each type; None: of another, or unknown.
    power_w: float | None = None
    power_seconds: float | None = None  # over which power was measured
    rate_per_w: float | None = None  # FLOP/s per watt over the same seconds, below the rate of a short repetition
    origin: str = "measured"


class CollectiveFit(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the time of a call: latency_s + wire bytes / bandwidth. The measured curve is in `measurements`."""

    name: str
    group: str
    ranks: tuple[int, ...]
    latency_s: float  # GPU latency if `timed` is queued_ahead; otherwise mostly the host's cost of starting a call
    bandwidth_bytes_per_s: float  # bus bandwidth
    median_error: float  # error of the fitted time relative to the measured time, over the sizes
    num_sizes: int
    backend: str
    timed: Timed = "as_called"  # of the smallest size
    call_s: float | None = None  # of the smallest size, by the host, as called


class PeerDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU, rank or pair that differs from its peers by the rule of `flatout doctor`."""

    name: str
    peer: str
    value: float
    usual: float  # median of the peers
    by: float  # value / usual - 1
    unit: Unit


class WrongResult(msgspec.Struct, frozen=True, kw_only=True):
    """A wrong result. Its speed is not a ceiling and is excluded."""

    name: str
    what: str
    ranks: tuple[int, ...]
    reason: str


class Ceilings(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    taken_at: str  # UTC, ISO 8601
    took_s: float
    device: str
    num_devices: int  # ranks that measured, each on a separate device; on CPUs they share one
    is_gpu: bool
    backend: str  # of the collectives
    software: str  # versions
    measurements: tuple[Measurement, ...]
    hosts: tuple[str, ...] = ()  # of each rank; a file of an older version has none
    fits: tuple[CollectiveFit, ...] = ()
    peers: tuple[PeerDifference, ...] = ()
    num_peers: dict[str, int] = {}  # kind -> number of peers that were compared; kinds with too few are absent
    peers_compared: dict[str, str] = {}  # kind -> number of peers, or why there was no comparison, as a sentence
    wrong: tuple[WrongResult, ...] = ()
    cores_busy_by_others: float | None = None  # of this host, during the measurements; None if unknown
    not_measured: dict[str, str] = {}  # measurement -> reason

    def matmul_flops_per_s(self) -> dict[str, float]:
        """Return the rate of the best shape by operand type, for one GPU (the median over GPUs) or the complete CPU."""
        best: dict[str, dict[tuple[int, ...], float]] = {}
        for measurement in self.measurements:
            if measurement.name == "matmul" and measurement.dtype is not None:
                by_ranks = best.setdefault(measurement.dtype, {})
                by_ranks[measurement.ranks] = max(by_ranks.get(measurement.ranks, 0.0), measurement.value)
        return {dtype: _median(list(rates.values())) for dtype, rates in best.items()}


def _median(values: list[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
