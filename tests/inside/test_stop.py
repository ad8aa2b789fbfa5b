"""A time limit stops a job at a step that all ranks learn of in time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from flatout.inside.identity import Identity
from flatout.inside.phases import stop
from flatout.inside.phases.stop import StopCondition
from flatout.inside.settings import RecorderSettings


def condition(state: Path, world_size: int, rank: int = 0, num_nodes: int = 1) -> StopCondition:
    identity = Identity(rank=rank, world_size=world_size, local_rank=rank, backend="gloo", num_nodes=num_nodes)
    settings = RecorderSettings(recording=state, stop_after_s=4)
    settings.state.mkdir(exist_ok=True)
    return StopCondition(settings, identity, 0)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit has passed."""
    monkeypatch.setattr(stop, "_IMPORTED_S", stop._IMPORTED_S - 1000)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("world_size", "num_nodes", "step_s", "stops_before"),
    [
        (1, 1, 0.0, 1),  # alone: at once
        (2, 1, 0.0, None),  # after the first step, no step time is known
        (2, 1, 0.5, 1 + 4),  # two seconds ahead
        (2, 1, 0.3, 1 + 7),
        (2, 2, 0.5, 1 + 10),  # across nodes, five
    ],
)
def test_the_step_is_announced_once_a_step_time_is_known(
    tmp_path: Path, world_size: int, num_nodes: int, step_s: float, stops_before: int | None
) -> None:
    first = condition(tmp_path, world_size, num_nodes=num_nodes)
    first.look(1, step_s)
    assert first.step == stops_before
    if world_size > 1:
        other = condition(tmp_path, world_size, rank=1, num_nodes=num_nodes)
        other.look(2, step_s)
        assert other.step == stops_before


@pytest.mark.usefixtures("late")
def test_a_limit_that_passes_in_the_first_step_stops_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    ranks = [condition(tmp_path, 2, rank) for rank in (0, 1)]
    step_of_rank = {}
    for following in range(1, 10):
        for rank in (1, 0):  # rank 1 looks just before rank 0 announces
            ranks[rank]._next_look = 0.0
            ranks[rank].look(following, 0.0 if following == 1 else 0.5)
            if rank not in step_of_rank and ranks[rank].is_due(following):
                step_of_rank[rank] = following
    assert step_of_rank == {0: 6, 1: 6}


def test_nothing_stops_before_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_IMPORTED_S", time.monotonic())
    stop_condition = condition(tmp_path, 1)
    stop_condition.look(1, 0.5)
    assert stop_condition.step is None
