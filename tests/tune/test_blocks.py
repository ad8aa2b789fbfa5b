"""Several changes compared in one start of a real job, and what is said of those that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.change.jobs import facts
from tests.inside.blocks.runs import JOB

from flatout.change import dataloader, garbage_collection, process
from flatout.change.setting import setting
from flatout.records.blocks import BlockResult
from flatout.records.change import Change, ChangeSet
from flatout.records.tuning import Separation
from flatout.trial.block_schedule import BlockArm, block_arm, schedule_text
from flatout.trial.journal import Heading, Journal
from flatout.tune.blocks import run_blocks, switchable
from flatout.tune.runner import Runner
from flatout.tune.trial_keys import blocks_key

FACTS = facts(loader_workers=0, loader_is_iterable=False, num_ranks=1, device="cpu", backend=None)


def only(change: Change) -> ChangeSet:
    patches = () if change.patch is None else (change.patch,)
    return ChangeSet(changes=(change,), environment=change.environment, patches=patches)


THREADS = only(setting(process.THREADS, 2, environment={"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}))
WORKERS = only(setting(dataloader.WORKERS, 1, patch="dataloader", num_workers=1))
OFF = only(setting(garbage_collection.OFF, patch="garbage_collection", how="off", after=10))
FREEZE = only(setting(garbage_collection.FREEZE, patch="garbage_collection", how="freeze", after=10))


def runner(tmp_path: Path, words: list[str]) -> Runner:
    heading = Heading(tool_version="1", command=tuple(words), options={})
    return Runner(
        words,
        tmp_path,
        Journal(tmp_path / "journal.jsonl", heading),
        shown_command=words,
        budget_s=600.0,
        say=lambda _: None,
        warmup=3,
        separation=Separation(),
    )


def run(tmp_path: Path, words: list[str], candidates: list[ChangeSet]) -> dict[str, BlockResult]:
    results = run_blocks(
        runner(tmp_path, words),
        candidates,
        applied=ChangeSet(),
        facts=FACTS,
        start_s=30.0,
        max_s=20.0,
        num_units=2,
    )
    assert [result.arm for result in results] == [candidate.name for candidate in candidates]
    return {result.arm: result for result in results}


def test_only_changes_that_can_be_taken_back_are_switched() -> None:
    assert switchable([THREADS, FREEZE, WORKERS, OFF], FACTS) == [THREADS, WORKERS, OFF]


@pytest.mark.usefixtures("warm")
def test_one_start_compares_several_changes_and_runs_the_others_not_at_all(tmp_path: Path) -> None:
    results = run(tmp_path, [sys.executable, str(JOB), "100000"], [OFF, FREEZE, WORKERS])
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["blocks-000"]
    for name in (OFF.name, WORKERS.name):
        result = results[name]
        assert result.problem is None, result
        assert result.num_units in (1, 2)  # one that is clearly slower is dropped after its first unit
        assert result.speedup is not None
        assert result.num_carry_over > 0
    assert results[OFF.name].num_units == 2
    assert "full collection" in str(results[FREEZE.name].problem)


@pytest.mark.usefixtures("warm")
def test_a_resumed_tuning_reads_the_blocks_of_the_interrupted_one(tmp_path: Path) -> None:
    """The second run could not start the job: the command is none."""
    words = [sys.executable, str(JOB), "100000"]
    before = run(tmp_path, words, [OFF])
    resumed = runner(tmp_path, words)
    resumed.command = ("not-a-command",)
    results = run_blocks(resumed, [OFF], applied=ChangeSet(), facts=FACTS, start_s=30.0, max_s=17.0, num_units=2)
    assert list(results) == list(before.values())
    assert resumed.resumed_s > 0
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["blocks-000"]


def test_other_blocks_are_another_run() -> None:
    arms = [arm for arm in (block_arm(each, FACTS) for each in (OFF, WORKERS)) if isinstance(arm, BlockArm)]
    texts = [
        schedule_text(arms[:1], num_units=2, max_s=20.0, seed=0),
        schedule_text(arms[:1], num_units=2, max_s=10.0, seed=0),
        schedule_text(arms, num_units=2, max_s=20.0, seed=0),
        schedule_text(arms[:1], num_units=3, max_s=20.0, seed=0),
    ]
    keys = [blocks_key(ChangeSet(), text) for text in texts]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3
    assert blocks_key(THREADS, texts[0]) != keys[0]


@pytest.mark.usefixtures("warm")
def test_a_job_that_fails_is_the_problem_of_all_its_changes(tmp_path: Path) -> None:
    results = run(tmp_path, [sys.executable, "-c", "import torch; raise RuntimeError('no data')"], [THREADS, OFF])
    assert {result.problem for result in results.values()} == {"RuntimeError: no data"}
    assert {result.verdict for result in results.values()} == {"undecided"}


def test_nothing_is_run_if_nothing_can_be_switched(tmp_path: Path) -> None:
    results = run(tmp_path, ["not-a-command"], [FREEZE])
    assert not (tmp_path / "runs").exists()
    assert results[FREEZE.name].verdict == "undecided"


@pytest.mark.usefixtures("warm")
def test_a_job_that_ends_before_its_blocks_says_so(tmp_path: Path) -> None:
    results = run(tmp_path, [sys.executable, str(JOB), "10"], [OFF])
    assert results[OFF.name].problem == "the job ended before the first block"
