"""kill -9 at random moments: whatever is killed, the training ends with the same bits, and no good checkpoint is lost.

20 kills, always the same ones; `benchmarks/checkpoint_kills.py` makes as many others as are wanted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkpoint.killing import NUM_RANKS, Kills, train
from tests.checkpoint.ranks import Done

NUM_KILLS = 5  # of each of the four


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Done]:
    """The uninterrupted run, by kind."""
    folder = tmp_path_factory.mktemp("whole")
    return functools.cache(lambda kind: train(folder / kind, kind))


@pytest.mark.parametrize(("kind", "seed"), [("ddp", 1), ("ddp", 2), ("fsdp", 3), ("fsdp", 4)])
def test_killed_trainings_end_with_the_same_bits(
    tmp_path: Path, whole: Callable[[str], Done], kind: str, seed: int
) -> None:
    assert whole(kind).codes == [0] * NUM_RANKS
    kills = Kills(tmp_path, whole(kind), kind=kind, seed=seed)
    for _ in range(NUM_KILLS):
        kills.kill_once()
    assert kills.finish() == "same"
    assert len(kills.outcomes) == NUM_KILLS
