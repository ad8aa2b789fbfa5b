"""One process, several processes and the tolerant path read the same table from the same file."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.read.conftest import source_of
from tests.read.samples import COLLECTIVE, assert_same_table, event, kernel, problems, small_events, small_trace

from flatout.errors import InputError
from flatout.read import event_text, lenient, read_trace, trace, workers
from flatout.read.columns import BlockDecoder
from flatout.read.schema import CompleteEvent, ExactEvent
from flatout.records.events import EventTable

CATEGORIES = [
    "cpu_op",
    "user_annotation",
    "cuda_runtime",
    "kernel",
    "gpu_memcpy",
    "python_function",
    "flux",
    "cuda_sync",
]

times = st.integers(0, 10**13).map(lambda ns: ns / 1000)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
arguments = st.fixed_dictionaries(
    {},
    optional={
        "External id": st.integers(0, 2**31),
        "correlation": st.integers(0, 2**40),
        "device": st.integers(0, 7),
        "stream": st.integers(0, 2**32),
        "bytes": st.integers(0, 2**50),
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3),
        "frames": st.lists(st.fixed_dictionaries({"name": texts}), max_size=2),
    },
)
complete = st.builds(
    lambda cat, name, ts, dur, tid, args: event(cat, name, ts, dur, tid=tid, **args),
    st.sampled_from(CATEGORIES),
    texts,
    times,
    times,
    st.integers(0, 3) | texts,
    arguments | st.just(COLLECTIVE),
)
other = st.sampled_from([e for e in small_events() if e["ph"] != "X"])
traces = st.lists(complete | other, max_size=60).map(lambda events: small_trace([*events, kernel("gemm", 1.5, 2)]))


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many blocks, and processes, also for small files."""
    monkeypatch.setattr(event_text, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(trace, "_MIN_PARALLEL_BYTES", 0)


class _NeverStrict:
    def decode(self, text: bytes) -> Any:
        raise msgspec.DecodeError


def read_tolerantly(path: Path, monkeypatch: pytest.MonkeyPatch, *, one_by_one: bool) -> EventTable:
    class TolerantDecoder(BlockDecoder):
        def __init__(self) -> None:
            super().__init__()
            self._strict = _NeverStrict()  # type: ignore[assignment]

    def decode_one_by_one(text: bytes, damage: Counter[str]) -> list[ExactEvent | None]:
        return [lenient._event(value, damage) for value in lenient._decode_one_by_one(text, damage)]

    with monkeypatch.context() as patch:
        patch.setattr(trace, "BlockDecoder", TolerantDecoder)
        if one_by_one:
            patch.setattr(lenient, "decode", decode_one_by_one)
        return read_trace(source_of(path))


@pytest.mark.usefixtures("small_blocks")
@given(content=traces, indent=st.sampled_from([None, 0, 2]), compress=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_way_of_reading_gives_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, indent: int | None, compress: bool
) -> None:
    text = json.dumps(content, indent=indent, ensure_ascii=False).encode()
    path = tmp_path / "trace.json"
    path.write_bytes(gzip.compress(text, 1, mtime=0) if compress else text)
    with monkeypatch.context() as patch:
        patch.setattr(event_text, "BLOCK_BYTES", 1 << 20)
        whole = read_trace(source_of(path))
    assert_same_table(read_trace(source_of(path)), whole)
    assert_same_table(read_trace(source_of(path), num_workers=2), whole)
    assert_same_table(read_tolerantly(path, monkeypatch, one_by_one=False), whole)
    assert_same_table(read_tolerantly(path, monkeypatch, one_by_one=True), whole)
    assert "could not be read" not in problems(whole) and "repaired" not in problems(whole)


@pytest.mark.usefixtures("small_blocks")
def test_damage_in_several_processes_is_counted_once(write: Callable[..., Path]) -> None:
    text = json.dumps(small_trace(small_events(500))).replace('"gemm"', '"ge"mm"')
    path = write(text)
    one, two = read_trace(source_of(path)), read_trace(source_of(path), num_workers=2)
    assert_same_table(one, two)
    assert problems(one) == problems(two) == "500 events of broken JSON were repaired"


@pytest.mark.usefixtures("small_blocks")
def test_an_event_larger_than_a_slot_is_read_by_the_parent(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_SLOT_BYTES", 4000)
    events = small_events(50)
    events[3] = {**events[3], "args": {**events[3]["args"], "Call stack": "x" * 50_000}}
    path = write(small_trace(events))
    assert_same_table(read_trace(source_of(path), num_workers=2), read_trace(source_of(path)))


@pytest.mark.usefixtures("small_blocks")
def test_columns_larger_than_a_slot_come_through_the_pipe(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_SLOT_BYTES", 1100)
    events = [{"ph": "X", "cat": "kernel", "ts": number, "dur": 1} for number in range(500)]
    path = write(events)
    assert_same_table(read_trace(source_of(path), num_workers=2), read_trace(source_of(path)))


@pytest.mark.usefixtures("small_blocks")
def test_a_worker_that_is_killed_is_replaced_by_reading_alone(
    write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(small_trace(small_events(200)))
    expected = read_trace(source_of(path))
    parent = os.getpid()

    class Killed(BlockDecoder):
        def decode(self, block: bytes | memoryview) -> Any:
            if os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().decode(block)

    monkeypatch.setattr(workers, "BlockDecoder", Killed)
    assert_same_table(read_trace(source_of(path), num_workers=2), expected)


@pytest.mark.usefixtures("small_blocks")
def test_no_process_is_left_behind_by_an_error(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import multiprocessing

    def fail(self: event_text.EventText) -> Iterator[bytes]:
        yield b'{"ph":"X","cat":"kernel","ts":1,"dur":1}'
        raise InputError("too large")

    monkeypatch.setattr(event_text.EventText, "blocks", fail)
    with pytest.raises(InputError, match="too large"):
        read_trace(source_of(write(small_trace())), num_workers=2)
    assert not multiprocessing.active_children()


def test_small_files_start_no_process(write: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "decode_in_processes", None)
    assert read_trace(source_of(write(small_trace())), num_workers=8).num_events == 12


def test_strict_and_exact_events_have_the_same_fields() -> None:
    assert CompleteEvent.__struct_fields__ == ExactEvent.__struct_fields__


def test_a_worker_ends_silently_whatever_its_parent_does_on_a_signal() -> None:
    """`flatout tune` raises an exception on SIGTERM, with which the parent ends its workers."""
    handled = (signal.SIGTERM, signal.SIGHUP)
    num_handling: list[int] = []

    def catches(pid: int) -> bool:
        status = Path(f"/proc/{pid}/status").read_text()
        mask = int(next(line for line in status.splitlines() if line.startswith("SigCgt:")).split()[1], 16)
        return any(mask & 1 << (number - 1) for number in handled)

    def blocks() -> Iterator[bytes]:
        pids = [child.pid for child in multiprocessing.active_children()]
        end = time.monotonic() + 5
        while any(map(catches, pids)) and time.monotonic() < end:
            time.sleep(0.01)
        num_handling.append(sum(map(catches, pids)))
        yield from ()

    before = {number: signal.signal(number, lambda *_: None) for number in handled}
    try:
        workers.decode_in_processes(blocks(), 2)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert num_handling == [0]
