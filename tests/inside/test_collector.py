"""The state of Python's garbage collector, and frozen objects that are found all the same."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from flatout.inside.collector import COLLECTOR, GarbageCollector
from flatout.inside.live_objects import live_objects


class Kept:
    """A class of which no other test has an object."""


@pytest.fixture(autouse=True)
def collector_as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.enable()
    gc.set_threshold(*threshold)
    COLLECTOR._frozen.clear()


def test_a_frozen_object_is_still_found_once_and_only_while_it_lives() -> None:
    kept = Kept()
    assert COLLECTOR.freeze([kept]) > 1000
    assert not any(candidate is kept for candidate in gc.get_objects())
    assert live_objects(Kept) == [kept]
    gc.unfreeze()
    assert live_objects(Kept) == [kept]
    gc.freeze()
    del kept
    assert live_objects(Kept) == []


def test_the_script_and_not_flatout_decides_whether_the_collector_is_automatic() -> None:
    collector = GarbageCollector()
    assert collector.is_automatic()
    collector.turn_off()
    assert not gc.isenabled()
    assert collector.is_automatic()
    script = GarbageCollector()
    assert not script.is_automatic()
    gc.enable()
    gc.set_threshold(0)
    assert not script.is_automatic()
