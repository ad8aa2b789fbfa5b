"""The kernel's counters of a thread, against bytes that the thread reads."""

from __future__ import annotations

import threading
from pathlib import Path

from flatout.inside.loader_stages.thread_counters import ThreadCounters

NUM_BYTES = 100_000


def test_bytes_and_calls_of_a_read_are_counted_beside_those_of_the_look_itself(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(NUM_BYTES))
    counters = ThreadCounters()
    first, second = counters.read(), counters.read()
    own_bytes, own_calls = second[1] - first[1], second[3] - first[3]
    with file.open("rb", buffering=0) as opened:
        opened.read(NUM_BYTES)
    third = counters.read()
    assert third[1] - second[1] == own_bytes + NUM_BYTES
    assert third[3] - second[3] == own_calls + 1
    counters.close()


def test_another_thread_gets_its_own_numbers(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(NUM_BYTES))
    counters = ThreadCounters()
    found: list[tuple[float, int, int, int]] = []
    file.read_bytes()
    mine = counters.read()
    thread = threading.Thread(target=lambda: found.append(counters.read()))
    thread.start()
    thread.join()
    assert mine[1] >= NUM_BYTES > found[0][1]
    assert counters.read()[1] >= mine[1]
    counters.close()
