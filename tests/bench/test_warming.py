"""What is warmed, and what of it is given up: one rank of its own, with cases that take a known time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from flatout.probe.ceilings import rounds as measuring
from flatout.probe.ceilings.benchmark import Benchmark
from flatout.probe.ceilings.current_benchmark import CurrentBenchmark
from flatout.probe.ceilings.names import NAMES, concerns
from flatout.probe.ceilings.raw import BenchSettings


class Alone:
    rank, size = 0, 1
    hosts = ("a",)

    def gathered(self, value: Any) -> list[Any]:
        return [value]

    def of_first(self, value: Any) -> Any:
        return value

    def wait(self) -> None:
        pass


def curve(call: Callable[[int], None], *, sizes: int = 6, sample_s: float = 0.0) -> list[Benchmark]:
    return [
        Benchmark(
            name="all_reduce", unit="B/s", work=float(1 << n), call=lambda n=n: call(n),  # type: ignore[misc]
            check=lambda n=n: call(n), checked="nothing", sample_s=sample_s,  # type: ignore[misc]
            labels={"group": "all"}, curve="all_reduce all",
        )
        for n in range(sizes)
    ]  # fmt: skip


def warmed(cases: list[Benchmark], time_s: float, monkeypatch: pytest.MonkeyPatch) -> measuring.Rounds:
    monkeypatch.setattr(measuring, "tell", lambda _: None)
    nowhere = CurrentBenchmark(None, 0)
    rounds = measuring.Rounds(cases, BenchSettings(time_s=time_s), Alone(), None, time.monotonic(), False, nowhere)  # type: ignore[arg-type]
    rounds.warm()
    return rounds


def test_a_communicator_that_is_slow_to_start_does_not_end_its_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL's first call of a group, which takes seconds: 0.3 s here, of 0.4 s that all of the warming has."""
    is_started: list[bool] = []

    def call(_: int) -> None:
        if not is_started:
            is_started.append(True)
            time.sleep(0.3)

    rounds = warmed(curve(call), 1.0, monkeypatch)
    assert rounds.not_measured == {}
    assert all(rounds._calls)
    assert rounds._cost_s[0] < 0.2


def test_another_algorithm_that_starts_late_does_not_end_its_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    started: set[int] = set()

    def call(n: int) -> None:
        if n == 3 and n not in started:
            started.add(n)
            time.sleep(0.15)

    assert warmed(curve(call), 1.0, monkeypatch).not_measured == {}


def test_a_curve_that_is_slow_is_ended_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = warmed(curve(lambda n: time.sleep(0.02 * 2**n)), 1.0, monkeypatch)
    assert rounds.not_measured == {"all_reduce all, the sizes above": "there was not enough time: raise --time"}
    assert rounds._calls[0]
    assert not rounds._calls[-1]


def test_what_curves_leave_over_goes_to_those_that_had_too_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow curve, then many quick ones: at first its fair part is 1/21 of 0.8 s, and in the end nearly all of it."""
    slow = curve(lambda n: time.sleep(0.01 * 2**n), sizes=4)
    quick = [
        Benchmark(name="x", unit="B/s", work=1.0, call=lambda: None, check=lambda: None, checked="", curve=f"quick {n}")
        for n in range(20)
    ]
    rounds = warmed([*slow, *quick], 2.0, monkeypatch)
    assert rounds.not_measured == {}
    assert all(rounds._calls)


def test_what_fails_ends_its_curve_in_every_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def call(n: int) -> None:
        tried.append(n)
        if n == 2:
            raise RuntimeError("CUDA out of memory\nmore")

    rounds = warmed(curve(call), 1.0, monkeypatch)
    assert rounds.not_measured == {"all_reduce all, the sizes above": "it failed: CUDA out of memory"}
    assert max(tried) == 2
    assert tried.count(2) == 1
    assert [bool(calls) for calls in rounds._calls] == [True, True, False, False, False, False]


def test_a_case_may_ask_for_longer_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = (
        warmed(curve(lambda _: time.sleep(0.002), sizes=1, sample_s=sample_s), 5.0, monkeypatch)._calls[0]
        for sample_s in (0.0, 0.2)
    )
    assert long > 4 * short


@pytest.mark.parametrize(
    ("num_cases", "call_s", "fewest", "most"),
    [
        (1, 0.0, measuring.MAX_ROUNDS, measuring.MAX_ROUNDS),
        (1, 0.03, measuring.MIN_ROUNDS, measuring.MAX_ROUNDS - 1),  # twice for each sample: the first does not count
        (8, 0.02, measuring.MIN_ROUNDS, measuring.MIN_ROUNDS),  # each is cheap, and all of them take 0.3 s
    ],
)
def test_rounds_are_repeated_until_the_time_is_up_but_at_least_3_times(
    num_cases: int, call_s: float, fewest: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (case,) = curve(lambda _: time.sleep(call_s), sizes=1)
    cases = [replace(case, check=lambda: None, max_calls=1, curve=f"curve {number}") for number in range(num_cases)]
    began = time.monotonic()
    rounds = warmed(cases, 1.0, monkeypatch)
    results: list[int] = []
    rounds.measure(lambda: results.append(len(rounds.found[-1].seconds)))
    took_s = time.monotonic() - began
    num_rounds = len(rounds.found[0].seconds)
    assert fewest <= num_rounds <= most
    assert results == list(range(measuring.MIN_ROUNDS, num_rounds + 1))
    assert took_s < 2.0 or num_rounds == measuring.MIN_ROUNDS


@pytest.mark.parametrize(
    ("what", "only", "is_asked"),
    [
        ("matmul fp8", ["matmul"], True),
        ("matmul fp8", ["all_reduce"], False),
        ("collectives above 268,435,456 B", ["broadcast"], True),
        ("collectives above 268,435,456 B", ["matmul"], False),
        ("all_reduce all, the sizes above", ["all_gather"], False),
        ("all_reduce all, the sizes above", ["all_reduce"], True),
        ("host_to_device, device_to_host", ["device_to_host_pinned"], True),
        ("host_to_device, device_to_host", ["host_memory_copy"], False),
        ("storage", ["storage_small_files"], True),
        ("storage", ["decode_zlib"], False),
        ("decode_jpeg with torchvision", ["decode_jpeg"], True),
        ("decode_jpeg with torchvision", ["decode_zlib"], False),
    ],
)
def test_only_what_was_asked_for_is_told_not_to_be_measured(what: str, only: list[str], is_asked: bool) -> None:
    assert concerns(what, only) is is_asked
    assert concerns(what, [])
    assert set(only) <= set(NAMES)
