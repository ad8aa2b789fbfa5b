"""The times of steps on a GPU, with a stand-in for its events."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flatout.inside.blocks.device_times import DeviceTimes


class Clock:
    """Events of a GPU that finish at the given milliseconds, in the order of recording."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ends_ms: list[float]) -> None:
        clock = self
        self.ends_ms = iter(ends_ms)
        self.num_waits = 0
        self.fails = False

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing
                self.at_ms = 0.0

            def record(self) -> None:
                self.at_ms = next(clock.ends_ms)

            def elapsed_time(self, other: Any) -> float:
                return float(other.at_ms - self.at_ms)

        def wait() -> None:
            self.num_waits += 1
            if self.fails:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", wait)


def test_each_step_takes_from_the_end_of_one_step_to_the_end_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [5.0, 15.0, 15.5])
    times = DeviceTimes()
    for _ in range(3):
        times.step_ended()
    assert times.take() == [10_000_000, 500_000]
    assert clock.num_waits == 1
    assert times.take() is None  # of the next block, none yet


def test_an_error_of_the_gpu_is_left_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, [5.0, 15.0])
    clock.fails = True
    times = DeviceTimes()
    times.step_ended()
    times.step_ended()
    assert times.take() is None


def test_without_a_gpu_nothing_is_timed() -> None:
    times = DeviceTimes()
    times.step_ended()
    assert times.take() is None
