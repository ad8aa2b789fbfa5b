"""Device time of queued calls: on a GPU that is simulated by its clock, as none is here; and what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.bench.test_summary import ceilings

from flatout.probe.ceilings.queued import FEW_CALLS, MAX_CALLS, calls_of, device_seconds
from flatout.probe.ceilings.raw import RawBenchmark
from flatout.report.ceilings_text import ceilings_text
from flatout.report.terminal import TextStyle


class Gpu:
    """One stream with a clock: work begins when it was queued and what is before it is done. Seconds."""

    def __init__(self, *, clock: float = 1.98e9, blocking: bool = False) -> None:
        self.host = self.stream = 0.0
        self.clock, self.blocking = clock, blocking
        self.cuda = SimpleNamespace(
            Event=lambda enable_timing: Event(self),
            synchronize=lambda device: self.wait(),
            _sleep=lambda cycles: self.launch(0.0, cycles / self.clock),
        )

    def wait(self) -> None:
        self.host = max(self.host, self.stream)

    def launch(self, host_s: float, device_s: float) -> None:
        self.host += host_s
        self.stream = max(self.stream, self.host) + device_s
        if self.blocking:
            self.wait()


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = max(self.gpu.stream, self.gpu.host)

    def query(self) -> bool:
        return self.at <= self.gpu.host

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


def timed(gpu: Gpu, *, host_s: float, device_s: float, other_rank_s: float = 0.0) -> float | None:
    """`other_rank_s`: how long the first all-reduce waits for another rank."""
    call: Callable[[], None] = lambda: gpu.launch(host_s, device_s)  # noqa: E731
    align: Callable[[], None] = lambda: gpu.launch(host_s, device_s + other_rank_s)  # noqa: E731
    return device_seconds(gpu, None, call, align, calls=MAX_CALLS, host_s=max(host_s, device_s))


@pytest.mark.parametrize("other_rank_s", [0.0, 0.01])
def test_calls_that_python_starts_slower_than_the_gpu_makes_them_have_the_gpus_time(other_rank_s: float) -> None:
    """57 us to start and 10 us to do, as of all-reduces of a kilobyte; the wait for another rank is in no call."""
    assert timed(Gpu(), host_s=57e-6, device_s=10e-6, other_rank_s=other_rank_s) == pytest.approx(10e-6)


def test_calls_that_take_long_have_the_same_time_either_way() -> None:
    assert timed(Gpu(), host_s=57e-6, device_s=900e-6) == pytest.approx(900e-6)


@pytest.mark.parametrize("gpu", [Gpu(clock=2e13), Gpu(blocking=True)])
def test_a_queue_that_ran_dry_has_no_time(gpu: Gpu) -> None:
    assert timed(gpu, host_s=57e-6, device_s=10e-6) is None


def test_a_torch_that_cannot_hold_a_stream_has_no_time() -> None:
    assert device_seconds(SimpleNamespace(cuda=SimpleNamespace()), None, pytest.fail, pytest.fail, calls=1, host_s=1) is None  # fmt: skip  # noqa: E501


def test_slow_calls_are_not_queued_and_a_stream_never_holds_many() -> None:
    assert calls_of(1e-4) == MAX_CALLS
    assert calls_of(2e-3) == FEW_CALLS
    assert calls_of(0.1) == 0


def reduced(size: int, seconds: list[float], queued: list[float | None]) -> RawBenchmark:
    labels: dict[str, Any] = {"group": "all", "size": size, "members": [0, 1], "backend": "nccl"}
    return RawBenchmark(
        name="all_reduce", unit="B/s", work=float(size), checked="all", labels=labels, seconds=seconds,
        queued_seconds=queued,
    )  # fmt: skip


def test_a_repetition_counts_as_queued_where_every_rank_was_ahead() -> None:
    first = [reduced(1 << 10, [60e-6, 60e-6, 60e-6], [10e-6, None, 14e-6])]
    second = [reduced(1 << 10, [50e-6, 50e-6, 50e-6], [20e-6, 20e-6, 16e-6])]
    (one,) = ceilings(first, second).measurements
    assert (one.timed, one.n) == ("queued_ahead", 2)
    assert one.seconds == pytest.approx(15e-6)
    assert one.seconds_as_called == pytest.approx(55e-6)
    assert one.value == pytest.approx(1024 / 15e-6)


def test_where_the_host_was_mostly_too_slow_its_own_time_stays_and_is_called_so() -> None:
    ranks = [[reduced(1 << 10, [60e-6] * 3, [10e-6, None, None])] for _ in range(2)]
    (one,) = ceilings(*ranks).measurements
    assert (one.timed, one.n, one.seconds) == ("as_called", 3, pytest.approx(60e-6))


def test_what_takes_longer_on_the_device_alone_than_from_the_host_is_not_believed() -> None:
    ranks = [[reduced(1 << 10, [60e-6] * 3, [90e-6] * 3)] for _ in range(2)]
    (one,) = ceilings(*ranks).measurements
    assert (one.timed, one.seconds) == ("as_called", pytest.approx(60e-6))


@pytest.mark.parametrize(
    ("is_ahead", "latency_s", "words"),
    [(True, 10e-6, "GPU time, with calls queued ahead"), (False, 57e-6, "mostly the host's time")],
)
def test_the_text_says_whose_latency_it_is(is_ahead: bool, latency_s: float, words: str) -> None:
    """A line of 10 us + bytes at 100 GB/s, that Python starts in 57 us."""
    rank = []
    for shift in range(10, 31, 2):
        device = 10e-6 + (1 << shift) / 100e9
        host = max(57e-6, device) if is_ahead else device + 47e-6
        rank.append(reduced(1 << shift, [host] * 3, [device] * 3 if is_ahead and shift <= 26 else []))
    found = ceilings(rank, rank)
    assert found.fits[0].latency_s == pytest.approx(latency_s, rel=0.05)
    assert found.fits[0].call_s == pytest.approx(57e-6, rel=0.05)
    text = " ".join(ceilings_text(found, style=TextStyle()).split())
    assert f"latency: {'' if is_ahead else 'of all_reduce as called'}" in text
    assert words in text
