"""Events of one type from damaged text, and their times in microseconds: what the readers of JAX and Horovod share."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from flatout.read.timed_events import EventDecoder, is_placed, spans_ns


class Named(msgspec.Struct):
    name: str = ""
    ts: float = -1.0


DECODER = EventDecoder(Named)


def test_a_damaged_block_gives_the_events_that_can_be_read() -> None:
    damage: Counter[str] = Counter()
    block = b'{"name": "a", "ts": 1.5}, {"name": "b", "ts": "2"}, {"name": "c", "ts": "no time"}, 7'
    assert DECODER.events(block, damage) == [Named(name="a", ts=1.5), Named(name="b", ts=2.0)]
    assert damage["unreadable"] >= 1
    assert DECODER.events(b'{"name": "a", "ts": 1.5}', Counter()) == [Named(name="a", ts=1.5)]


@pytest.mark.parametrize(
    ("time_us", "expected"),
    [(0.0, True), (4.5e15, True), (4.7e15, False), (-0.001, False), (float("nan"), False), (float("inf"), False)],
)
def test_times_that_ns_can_hold_are_placed(time_us: float, expected: bool) -> None:
    assert is_placed(time_us) is expected


def test_events_that_touch_in_us_touch_in_ns() -> None:
    """Times from 0.001 us to days, each event ending where the next one begins."""
    edges = [0.001 * 1.7**number for number in range(60)]
    start_ns, duration_ns = spans_ns(edges[:-1], edges[1:])
    assert list(start_ns[1:]) == list(start_ns[:-1] + duration_ns[:-1])
    assert start_ns[0] == 1
    assert list(spans_ns([1.0], [3.5])) == [1000, 2500]
