"""Advice on the loader omits what the job has set already."""

from __future__ import annotations

import pytest

from flatout.diagnose.loader_advice import (
    PERHAPS_STATEFUL,
    STATEFUL,
    keep_new_workers,
    keep_workers,
    pin_memory,
    prefetch_more,
    start_workers_fast,
)
from flatout.records.change import JobFacts

PERSISTENT = "DataLoader(persistent_workers=True)"


@pytest.mark.parametrize(
    ("workers", "is_persistent", "advice"),
    [(2, False, (PERSISTENT,)), (None, None, (PERSISTENT,)), (2, True, ()), (0, False, ())],
)
def test_workers_are_kept_where_there_are_some_that_end(
    workers: int | None, is_persistent: bool | None, advice: tuple[str, ...]
) -> None:
    """torch refuses persistent workers where there are none."""
    loader = JobFacts(
        loader_workers=workers,
        loader_has_persistent_workers=is_persistent,
        loader_draws=False,
        loader_keeps_state=False,
    )
    assert keep_workers(loader) == advice


@pytest.mark.parametrize(
    ("method", "is_persistent", "is_advised"),
    [("spawn", False, True), ("spawn", True, False), ("fork", False, False), (None, None, False)],
)
def test_spawned_workers_are_to_start_from_a_fork_server(
    method: str | None, is_persistent: bool | None, is_advised: bool
) -> None:
    loader = JobFacts(loader_start_method=method, loader_has_persistent_workers=is_persistent)
    assert bool(start_workers_fast(loader)) is is_advised


def test_new_workers_are_kept_unless_they_are_already() -> None:
    assert keep_new_workers(JobFacts(loader_workers=0)) == (f"{PERSISTENT} ({PERHAPS_STATEFUL})",)
    for advise in (keep_new_workers, keep_workers):
        assert advise(JobFacts()) == (f"{PERSISTENT} ({PERHAPS_STATEFUL})",)
        assert advise(JobFacts(loader_draws=True)) == (f"{PERSISTENT} ({STATEFUL})",)
        assert advise(JobFacts(loader_keeps_state=True)) == (f"{PERSISTENT} ({STATEFUL})",)
    assert keep_new_workers(JobFacts(loader_draws=False, loader_keeps_state=False)) == (PERSISTENT,)
    assert keep_new_workers(JobFacts(loader_has_persistent_workers=True)) == ()


@pytest.mark.parametrize(("prefetch", "advised"), [(None, 4), (2, 4), (4, 8)])
def test_more_is_prefetched_than_now(prefetch: int | None, advised: int) -> None:
    assert prefetch_more(JobFacts(loader_prefetch=prefetch)) == f"DataLoader(prefetch_factor={advised})"


@pytest.mark.parametrize(
    ("pins", "has_gpu", "is_advised"),
    [(None, True, True), (False, True, True), (True, True, False), (None, False, False)],
)
def test_memory_is_pinned_once(pins: bool | None, has_gpu: bool, is_advised: bool) -> None:
    assert bool(pin_memory(JobFacts(loader_pins_memory=pins), has_gpu=has_gpu)) == is_advised
