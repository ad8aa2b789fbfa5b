"""Arms that are clearly slower get no more blocks, on all ranks alike."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.inside.blocks.runs import run_blocks

from flatout.inside.blocks import dropped as module
from flatout.inside.blocks.dropped import DroppedArms
from flatout.inside.identity import Identity


def arms(state: Path, rank: int = 0, world_size: int = 1) -> DroppedArms:
    identity = Identity(rank=rank, world_size=world_size, local_rank=rank, backend="gloo", num_nodes=1)
    return DroppedArms(state, identity, 0)


@pytest.mark.parametrize(
    ("slowdowns", "is_dropped"),
    [
        ([1.99], False),
        ([2.01], True),
        ([1.24, 3.0], False),
        ([1.26, 1.26], True),
        ([1.24, 1.26, 1.26], False),
        ([0.5], False),
    ],
)
def test_an_arm_is_dropped_after_one_clear_unit_or_two(
    tmp_path: Path, slowdowns: list[float], is_dropped: bool
) -> None:
    found: set[int] = set()
    dropped = arms(tmp_path)
    for number, slowdown in enumerate(slowdowns):
        for arm in (0, 2, 2, 0):
            dropped.add(arm, 0.1 * (slowdown if arm else 1.0))
        found = dropped.before_unit(number + 1)
    assert found == ({2} if is_dropped else set())


def test_other_ranks_wait_for_what_rank_0_says(tmp_path: Path) -> None:
    first, second = arms(tmp_path, 0, 2), arms(tmp_path, 1, 2)
    answers: list[set[int]] = []
    waiting = threading.Thread(target=lambda: answers.append(second.before_unit(1)))
    waiting.start()
    for arm in (0, 1, 1, 0):
        first.add(arm, 0.1 * (5.0 if arm else 1.0))
        second.add(arm, 0.1)  # its own times do not count
    assert first.before_unit(1) == {1}
    waiting.join(10)
    assert answers == [{1}]


def test_a_rank_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LONGEST_WAIT_S", 0.05)
    with pytest.raises(TimeoutError, match="rank 0 has not said"):
        arms(tmp_path, 1, 2).before_unit(1)


@pytest.mark.usefixtures("warm")
def test_a_slow_arm_does_not_take_the_time_of_the_job(tmp_path: Path) -> None:
    """Two million objects are examined at every step instead of every tenth."""
    order = (0, 1, 1, 0) * 4
    setting = ("garbage_collection", {"how": "together", "every": 1})
    run = run_blocks(tmp_path / "r", [setting], "objects", order=order, num_steps=12, drops_slow_arms=True)
    assert run.done.code == 0, run.done.errors
    assert run.done.log == ""
    # Twice as slow in the first unit, or by a quarter in each of the first two or three: that depends on the machine.
    assert [event["block"] for event in run.events] in (list(range(4)), list(range(8)), list(range(12)))
