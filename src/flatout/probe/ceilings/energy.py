"""Measure the power of a GPU while it multiplies matrices for seconds: operations per joule.

In: a benchmark and the GPU's energy counter. Out: watts, and the rate per watt over the same seconds. The counter
advances some ten times per second, so the time between two of its advances counts. A repetition of a few milliseconds
is too short for it, and its clocks are higher than those of a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from flatout.probe.ceilings.benchmark import Benchmark
from flatout.probe.ceilings.raw import RawBenchmark

SECONDS = 2.0  # of each operand type
SETTLING_S = 0.5  # until clocks and power are steady
_LIMIT_S = 3 * SECONDS  # a counter that does not advance is given up
_BATCH_S = 0.01
Joules = Callable[[], float | None]


class Sustained(msgspec.Struct, frozen=True, kw_only=True):
    """The power of a GPU over seconds of one operation, and its rate per watt."""

    watts: float
    rate_per_w: float


def energy_counter(address: str | None, nvml: Any = None) -> Joules | None:
    """Return a function that reads the counter of the GPU at a PCI address; None if the driver gives none."""
    if address is None:
        return None
    try:
        if nvml is None:
            import pynvml

            nvml = pynvml
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByPciBusId(address)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError:
        return None

    def joules() -> float | None:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3
        except nvml.NVMLError:
            return None

    return joules


def sustained(
    benchmark: Benchmark, joules: Joules, *, clock: Callable[[], float] = time.perf_counter
) -> Sustained | None:
    """Call the benchmark for some seconds; None if the counter does not advance."""
    began = clock()
    num_calls, in_batch = 0, 1
    last_j = joules()
    first: tuple[float, float, int] | None = None  # time, energy and calls at an advance of the counter
    while clock() - began < _LIMIT_S:
        batch_began = clock()
        for _ in range(in_batch):
            benchmark.call()
        benchmark.sync()
        num_calls += in_batch
        now, now_j = clock(), joules()
        if now - batch_began < _BATCH_S / 2:
            in_batch *= 2
        if now_j is None or last_j is None:
            return None
        has_advanced, last_j = now_j > last_j, now_j
        if not has_advanced or now - began < SETTLING_S:
            continue
        if first is None:
            first = now, now_j, num_calls
        elif now - first[0] >= SECONDS:
            watts = (now_j - first[1]) / (now - first[0])
            rate = benchmark.work * (num_calls - first[2]) / (now - first[0])
            return Sustained(watts=watts, rate_per_w=rate / watts)
    return None


def note_power(
    benchmarks: Sequence[Benchmark],
    found: Sequence[RawBenchmark],
    joules: Joules,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> None:
    """Measure the largest matrix multiplication of each operand type, and note its power in `found`."""
    largest: dict[str, int] = {}
    for index, benchmark in enumerate(benchmarks):
        dtype = benchmark.labels.get("dtype")
        if benchmark.name != "matmul" or dtype is None or found[index].wrong:
            continue
        if dtype not in largest or benchmark.work > benchmarks[largest[dtype]].work:
            largest[dtype] = index
    for index in largest.values():
        measured = sustained(benchmarks[index], joules, clock=clock)
        if measured is not None:
            found[index].labels["power"] = msgspec.to_builtins(measured)
