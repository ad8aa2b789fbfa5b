"""Copies to a GPU: which calls count, and the times of their events. The device `meta` stands for a GPU."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.inside.loader_stages.planted import Files
from torch.utils.data import DataLoader

from flatout.inside.loader_stages import batch_watch, device_copies
from flatout.inside.loader_stages.device_copies import MIN_BYTES, DeviceCopies, hook_copies

COPY_MS = 2.5
LARGE = torch.zeros(MIN_BYTES)


class Event:
    """Has a time once it is recorded; the GPU has done it when the test says so."""

    is_done = True

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = 0.0

    def query(self) -> bool:
        return self.is_done

    def elapsed_time(self, later: Event) -> float:
        return later.at_ms - self.at_ms


class Cuda:
    """The part of `torch.cuda` that is used."""

    Event = Event

    def __init__(self) -> None:
        self.is_capturing, self.has_begun, self.now_ms = False, True, 0.0

    def is_initialized(self) -> bool:
        return self.has_begun

    def is_current_stream_capturing(self) -> bool:
        return self.is_capturing

    def current_stream(self, device: torch.device) -> Any:
        return SimpleNamespace(record_event=self._record)

    def _record(self, event: Event) -> Event:
        event.at_ms = self.now_ms
        self.now_ms += COPY_MS
        return event


@pytest.fixture
def cuda() -> Cuda:
    return Cuda()


@pytest.fixture
def copies(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeviceCopies]:
    """Time from the first copy on."""
    monkeypatch.setattr(device_copies, "_NUM_UNTIMED", 0)
    copies = DeviceCopies(cuda, kind="meta")
    undo = hook_copies(copies)
    copies.begin()
    yield copies
    undo()
    assert "to" not in vars(torch.Tensor) and "cuda" not in vars(torch.Tensor)


@pytest.mark.parametrize(
    "copy",
    [
        lambda: LARGE.to("meta"),
        lambda: LARGE.to(torch.device("meta"), torch.float64),
        lambda: LARGE.to(device="meta", non_blocking=True),
        lambda: LARGE.to(torch.zeros(1, device="meta")),
    ],
)
def test_a_copy_is_counted_and_timed_however_its_device_is_named(copies: DeviceCopies, copy: Any) -> None:
    assert copy().device.type == "meta"
    copies.look()
    assert copies.report() == {
        "num_copies": 1,
        "num_bytes": LARGE.nbytes,
        "num_timed": 1,
        "timed_s": pytest.approx(COPY_MS / 1e3),
    }


@pytest.mark.parametrize(
    "call",
    [
        lambda: LARGE.to(torch.float64),
        lambda: LARGE.to("cpu"),
        lambda: LARGE.to(LARGE),
        lambda: torch.zeros(MIN_BYTES // 4 - 1).to("meta"),
        lambda: torch.zeros(MIN_BYTES, device="meta").to("meta"),
    ],
)
def test_what_is_no_copy_of_a_batch_is_not_counted(copies: DeviceCopies, call: Any) -> None:
    call()
    assert copies.report()["num_copies"] == 0


def test_a_model_that_is_moved_before_the_first_batch_does_not_count(cuda: Cuda) -> None:
    copies = DeviceCopies(cuda, kind="meta")
    copies.call(torch.Tensor.to, LARGE, "meta")
    assert copies.num_copies == 0
    copies.begin()
    copies.call(torch.Tensor.to, LARGE, "meta")
    assert copies.num_copies == 1
    copies.reset()
    copies.call(torch.Tensor.to, LARGE, "meta")
    assert copies.num_copies == 0


def test_a_copy_counts_without_a_time_while_a_graph_is_captured(copies: DeviceCopies, cuda: Cuda) -> None:
    cuda.is_capturing = True
    LARGE.to("meta")
    copies.look()
    assert (copies.num_copies, copies.num_timed) == (1, 0)


def test_nothing_waits_for_copies_that_are_not_done(copies: DeviceCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_copies, "_MAX_PENDING", 3)
    monkeypatch.setattr("flatout.inside.loader_stages.budget.MAX_SHARE", 1e9)
    monkeypatch.setattr(Event, "is_done", False)
    for _ in range(5):
        LARGE.to("meta")
    copies.look()
    assert (copies.num_copies, copies.num_timed) == (5, 0)
    monkeypatch.setattr(Event, "is_done", True)
    copies.look()
    assert copies.num_timed == 3


def test_timing_takes_its_share_of_the_time_at_most(copies: DeviceCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.inside.loader_stages.budget.MAX_SHARE", 0.0)
    for _ in range(10):
        LARGE.to("meta")
    copies.look()
    assert (copies.num_copies, copies.num_timed) == (10, 4)  # the first four are always timed


def test_a_wait_for_the_queue_of_the_gpu_is_no_cost_of_timing(
    copies: DeviceCopies, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now_s=1.0, waits_s=0.0)
    monkeypatch.setattr(device_copies, "_now", lambda: clock.now_s)
    record = cuda._record

    def record_and_wait(event: Event) -> Event:
        clock.now_s += 1e-5 + clock.waits_s
        return record(event)

    monkeypatch.setattr(cuda, "_record", record_and_wait)
    copies._began_s = clock.now_s
    for number in range(10):
        clock.waits_s = 0.1 if number == 5 else 0.0
        LARGE.to("meta")
        clock.now_s += 1.0
    copies.look()
    assert copies.num_timed == 10
    assert copies.spent_s == pytest.approx(10 * 2e-5)


def test_the_first_copies_are_counted_and_not_timed(cuda: Cuda) -> None:
    copies = DeviceCopies(cuda, kind="meta")
    undo = hook_copies(copies)
    copies.begin()
    for _ in range(6):
        LARGE.to("meta")
    undo()
    copies.look()
    assert (copies.num_copies, copies.num_timed) == (6, 2)


def test_a_forked_process_keeps_the_events_of_its_parent(copies: DeviceCopies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "is_done", False)
    LARGE.to("meta")
    events = [weakref.ref(event) for event in copies._pending[0]]
    copies.reset()
    assert not copies._pending
    assert all(event() is not None for event in events)


def test_an_error_of_the_events_is_not_the_jobs(
    copies: DeviceCopies, cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Cuda, device: torch.device) -> Any:
        raise RuntimeError("no stream")

    monkeypatch.setattr(Cuda, "current_stream", fails)
    assert LARGE.to("meta").device.type == "meta"


@pytest.fixture
def on_a_gpu() -> Iterator[DeviceCopies]:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    torch.cuda.init()
    copies = DeviceCopies()
    undo = hook_copies(copies)
    copies.begin()
    yield copies
    undo()
    torch.cuda.synchronize()


def pinned_batch() -> torch.Tensor:
    return torch.zeros(64 << 20, dtype=torch.uint8).pin_memory()


@pytest.mark.gpu
def test_on_a_gpu_a_copy_of_pinned_memory_takes_as_long_as_its_bandwidth_says(on_a_gpu: DeviceCopies) -> None:
    batch = pinned_batch()
    for _ in range(4):
        batch.to("cuda", non_blocking=True)
        batch.cuda(non_blocking=True)
    torch.cuda.synchronize()
    on_a_gpu.look()
    assert (on_a_gpu.num_copies, on_a_gpu.num_bytes) == (8, 8 * batch.nbytes)
    rate = batch.nbytes * on_a_gpu.num_timed / on_a_gpu.timed_s
    assert on_a_gpu.num_timed >= 4 and 2e9 < rate < 1e12


@pytest.mark.gpu
def test_on_a_gpu_a_worker_that_is_forked_while_copies_are_pending_lives(on_a_gpu: DeviceCopies) -> None:
    batch = pinned_batch()
    for _ in range(8):
        batch.to("cuda", non_blocking=True)
    child = os.fork()
    if child == 0:
        on_a_gpu.reset()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


class Copying(Files):
    """Each sample is copied while it is made, too."""

    def change(self, value: torch.Tensor) -> torch.Tensor:
        LARGE.to("meta")
        return value


def test_copies_count_in_the_training_process_and_not_in_workers(
    cuda: Cuda, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_watch, "DeviceCopies", lambda: DeviceCopies(cuda, kind="meta"))
    undo = batch_watch.hook_stages(tmp_path)
    num_batches = 0
    for _ in DataLoader(Copying(tmp_path), batch_size=4, num_workers=1):
        LARGE.to("meta")
        num_batches += 1
    undo()
    reports = [json.loads(path.read_text()) for path in tmp_path.glob("stages-*.json")]
    copied = {report["worker"]: report["copied"]["num_copies"] for report in reports}
    assert copied == {None: num_batches, 0: 0}
