"""kill -9 at random moments: whatever is killed, the training ends with the same bits, and no good checkpoint is lost.

6 kills, always the same ones; `benchmarks/checkpoint_kills.py` makes as many others as are wanted.
"""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint import cut_short, ranks
from tests.checkpoint.killing import NUM_RANKS, Kills, train
from tests.checkpoint.order_lines import problems, steps_of, uses_per_epoch, wrong_samples
from tests.checkpoint.ranks import Done

NUM_KILLS = 2  # of each of the three


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Done]:
    """The uninterrupted run, by kind."""
    folder = tmp_path_factory.mktemp("whole")
    return functools.cache(lambda kind: train(folder / kind, kind))


@pytest.mark.parametrize(("kind", "seed"), [("ddp", 1), ("ddp", 2), ("fsdp", 3)])
def test_killed_trainings_end_with_the_same_bits(
    tmp_path: Path, whole: Callable[[str], Done], kind: str, seed: int
) -> None:
    assert whole(kind).codes == [0] * NUM_RANKS
    kills = Kills(tmp_path, whole(kind), kind=kind, seed=seed)
    for _ in range(NUM_KILLS):
        kills.kill_once()
    assert kills.finish() == "same"
    assert len(kills.outcomes) == NUM_KILLS


def test_killed_before_any_change_to_the_folder_it_has_the_one_before_or_the_new_one(tmp_path: Path) -> None:
    command = [sys.executable, cut_short.__file__, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    *killed, whole = done.stdout.splitlines()
    assert whole == "3 4.0; 3 4.0; checkpoints.jsonl step-000000009"
    assert len(killed) >= 40  # else the changes were not seen
    resumed = []
    for line in killed:
        _, what = line.split(": ")
        first, second, names = what.split("; ")
        assert second == first, line
        # Nothing is left but what a lock is made from, of 200 bytes.
        left = [name for name in names.split() if not name.startswith(".lock.json.")]
        assert left == ["checkpoints.jsonl", "step-000000009"], line
        resumed.append(first)
    assert list(dict.fromkeys(resumed)) == ["1 1.0", "2 2.0", "3 3.0", "3 4.0"]  # each once begun, none again
    assert resumed == sorted(resumed)


@pytest.mark.parametrize(("kind", "workers", "num_ranks"), [("shuffled", 2, 1), ("distributed", 0, 2)])
def test_each_sample_of_an_epoch_is_used_once_over_kills(
    kind: str, workers: int, num_ranks: int, tmp_path: Path
) -> None:
    num_epochs = 3
    num_steps = num_epochs * 12 // num_ranks
    draw = random.Random(f"{kind} {workers}")
    common = {"job": "tests.checkpoint.order_job", "kind": kind, "num_ranks": num_ranks}
    options = ["--workers", str(workers), "--pause", "0.01"]
    whole = ranks.run(tmp_path / "whole", num_steps, *options, **common)
    assert whole.codes == [0] * num_ranks, whole.errors
    starts = []

    def kill(processes: list[Any], outputs: list[Path]) -> None:
        until, wanted = time.monotonic() + 60, draw.randrange(2, 10)
        while time.monotonic() < until and outputs[0].read_text().count("step") < wanted and processes[0].is_alive():
            time.sleep(0.002)
        os.kill(draw.choice(processes).pid, signal.SIGKILL)

    for watch in (kill, kill, None):
        done = ranks.run(tmp_path / "ckpt", num_steps, *options, watch=watch, **common)
        starts.append(done)
    assert starts[-1].codes == [0] * num_ranks, starts[-1].errors
    used: list[dict[int, Any]] = []
    for rank in range(num_ranks):
        steps = [(done.start, steps_of(done.outputs[rank])) for done in starts]
        assert problems(steps, steps_of(whole.outputs[rank])) == []
        used.append({step: rows for _, of_start in steps for step, rows in of_start.items()})
    assert wrong_samples(uses_per_epoch(used), num_epochs) == {}
