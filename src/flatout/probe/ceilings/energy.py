"""Measure the power of a GPU while it multiplies matrices for seconds: operations per joule.

In: a benchmark and the GPU's energy counter, or its power where it has no such counter. Out: watts, and the rate per
watt over the same seconds. The counter advances some ten times per second, so the time between two of its advances
counts. It is read while the GPU works, since reading it can take milliseconds, above all in a virtual machine. A
repetition of a few milliseconds is too short for it, and its clocks are higher than those of a job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from flatout.probe.ceilings.benchmark import Benchmark
from flatout.probe.ceilings.raw import RawBenchmark

SECONDS = 2.0  # of each operand type, if there is time
LEAST_S = 1.0
SETTLING_S = 0.5  # until clocks and power are steady
_MOST_TIMES = 3.0  # a counter that has not advanced within this multiple of the seconds is given up
_ORDER = ("bf16", "fp8", "fp16", "tf32", "fp32")  # if there is no time for all operand types
STANDS_STILL = "the GPU's energy counter does not advance"
NO_POWER = "the driver gives neither the energy nor the power of the GPU"
_BATCH_S = 0.02
Joules = Callable[[], float | None]


class Sustained(msgspec.Struct, frozen=True, kw_only=True):
    """The power of a GPU over seconds of one operation, and its rate per watt."""

    watts: float
    rate_per_w: float
    seconds: float


def energy_counter(
    address: str | None, nvml: Any = None, *, clock: Callable[[], float] = time.perf_counter
) -> Joules | None:
    """Return a function that reads the energy of the GPU at a PCI address; None if the driver gives none.

    GPUs before Volta have no energy counter: there it is the sum of the power at each call.
    """
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
    except nvml.NVMLError:
        return None

    def read(name: str) -> float | None:
        try:
            return float(getattr(nvml, name)(handle)) / 1e3
        except nvml.NVMLError:
            return None

    if read("nvmlDeviceGetTotalEnergyConsumption") is not None:
        return lambda: read("nvmlDeviceGetTotalEnergyConsumption")
    if read("nvmlDeviceGetPowerUsage") is not None:
        return _sampled(lambda: read("nvmlDeviceGetPowerUsage"), clock)
    return None


def _sampled(watts: Callable[[], float | None], clock: Callable[[], float]) -> Joules:
    """Return a function that adds up the power, taken as straight between two of its calls."""
    last_s, last_w, total_j = clock(), watts(), 0.0

    def joules() -> float | None:
        nonlocal last_s, last_w, total_j
        now_s, now_w = clock(), watts()
        if now_w is None or last_w is None:
            return None
        total_j += (now_s - last_s) * (now_w + last_w) / 2
        last_s, last_w = now_s, now_w
        return total_j

    return joules


def sustained(
    benchmark: Benchmark, joules: Joules, *, seconds: float = SECONDS, clock: Callable[[], float] = time.perf_counter
) -> Sustained | None:
    """Call the benchmark for `seconds`; None if the counter does not advance."""
    began = clock()
    num_calls, in_batch = 0, 1
    last_j = joules()
    first: tuple[float, float, int] | None = None  # time, energy and calls at an advance of the counter
    while clock() - began < _MOST_TIMES * seconds:
        batch_began = clock()
        for _ in range(in_batch):
            benchmark.call()
        now, now_j = clock(), joules()
        benchmark.sync()
        num_done, num_calls = num_calls, num_calls + in_batch
        if clock() - batch_began < _BATCH_S / 2:
            in_batch *= 2
        if now_j is None or last_j is None:
            return None
        has_advanced, last_j = now_j > last_j, now_j
        if not has_advanced or now - began < SETTLING_S:
            continue
        if first is None:
            first = now, now_j, num_done
        elif now - first[0] >= seconds:
            took_s = now - first[0]
            watts = (now_j - first[1]) / took_s
            rate = benchmark.work * (num_done - first[2]) / took_s
            return Sustained(watts=watts, rate_per_w=rate / watts, seconds=took_s)
    return None


def note_power(
    benchmarks: Sequence[Benchmark],
    found: Sequence[RawBenchmark],
    joules: Joules | None,
    *,
    time_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, str]:
    """Measure the largest matrix multiplication of each operand type, all within `time_s`; note its power in `found`.

    Return why the power of others is unknown, by what was not measured.
    """
    largest = _largest(benchmarks, found)
    num_measured = min(len(largest), int(time_s / (LEAST_S + SETTLING_S)))
    missing: dict[str, str] = {}
    problem = NO_POWER if joules is None else None
    for number, (dtype, index) in enumerate(largest.items()):
        if problem is None and number == num_measured:
            problem = "there was not enough time: raise --time"
        if problem is None and joules is not None:
            seconds = min(time_s / num_measured - SETTLING_S, SECONDS)
            measured = sustained(benchmarks[index], joules, seconds=seconds, clock=clock)
            if measured is not None:
                found[index].labels["power"] = msgspec.to_builtins(measured)
                continue
            problem = STANDS_STILL
        missing[f"matmul {dtype}, FLOP/s per W"] = str(problem)
    return missing


def _largest(benchmarks: Sequence[Benchmark], found: Sequence[RawBenchmark]) -> dict[str, int]:
    """Return the largest matrix multiplication of each operand type, in the order in which they are measured."""
    largest: dict[str, int] = {}
    for index, benchmark in enumerate(benchmarks):
        dtype = benchmark.labels.get("dtype")
        if benchmark.name != "matmul" or dtype is None or found[index].wrong:
            continue
        if dtype not in largest or benchmark.work > benchmarks[largest[dtype]].work:
            largest[dtype] = index
    return {dtype: largest[dtype] for dtype in sorted(largest, key=_ORDER.index)}
