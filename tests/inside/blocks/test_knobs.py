"""Each setting takes effect in its own blocks only, and the job trains as before in the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.inside.blocks.runs import BlockEvents, run_blocks

pytestmark = pytest.mark.usefixtures("warm")

ORDER = (0, 1, 1, 0, 1, 0, 0, 1)


@pytest.fixture(scope="module")
def plain(warm: None, tmp_path_factory: pytest.TempPathFactory) -> BlockEvents:
    """Blocks in which nothing changes."""
    run = run_blocks(tmp_path_factory.mktemp("plain") / "r", [("threads", {"number": 1})], order=ORDER, num_steps=12)
    assert run.done.code == 0, run.done.errors
    return run


def of_job(tmp_path: Path, name: str, parameters: dict[str, Any], *options: str, **more: Any) -> BlockEvents:
    run = run_blocks(tmp_path / "r", [(name, parameters)], *options, **{"order": ORDER, **more})
    assert run.done.code == 0, run.done.errors
    assert run.done.log == ""
    return run


def samples(run: BlockEvents) -> list[int]:
    return [index for step in run.steps for index in step.samples]


def losses(run: BlockEvents) -> list[float]:
    return [float.fromhex(step.values["loss"]) for step in run.steps]


def are_equal_at_the_start(one: list[Any], other: list[Any]) -> bool:
    length = min(len(one), len(other))
    return length > 40 and one[:length] == other[:length]


@pytest.mark.parametrize("options", [["workers=0"], ["workers=1"], ["workers=1", "persistent"]])
def test_loaders_take_over_from_each_other_with_the_same_samples_in_the_same_order(
    plain: BlockEvents, tmp_path: Path, options: list[str]
) -> None:
    """Epochs of 24 steps, so that switches fall into them and epochs begin in blocks of both arms."""
    own = int("workers=1" in options)
    if "persistent" in options:  # torch draws other random numbers for workers that are kept
        plain = of_job(tmp_path / "plain", "threads", {"number": 1}, *options, num_steps=12)
    wanted = {"num_workers": 2 if own == 0 else 0}
    run = of_job(tmp_path / "x", "dataloader", wanted, *options, carry_over=6, num_steps=12)
    assert run.problems("x") == {None}
    assert (run.seen("workers", "baseline"), run.seen("workers", "x")) == ({own}, {1 - own})
    assert are_equal_at_the_start(samples(run), samples(plain))
    assert are_equal_at_the_start(losses(run), losses(plain))


def test_prefetching_alone_makes_new_workers(plain: BlockEvents, tmp_path: Path) -> None:
    run = of_job(tmp_path, "dataloader", {"prefetch_factor": 8}, "workers=1", carry_over=10, num_steps=4)
    assert run.problems("x") == {None}
    assert are_equal_at_the_start(samples(run), samples(plain))


@pytest.mark.parametrize(
    ("options", "parameters", "problem"),
    [
        (["stream"], {"num_workers": 1}, "an iterable dataset has its position in its iterator"),
        ([], {"pin_memory": True}, "no loader was switched"),  # there is no GPU
        ([], {"prefetch_factor": 4}, "no loader was switched"),  # nor are there workers
    ],
)
def test_a_loader_that_cannot_be_switched_says_why(
    tmp_path: Path, options: list[str], parameters: dict[str, Any], problem: str
) -> None:
    run = of_job(tmp_path, "dataloader", parameters, *options)
    assert run.problems("x") == {problem}


def test_a_new_reducer_has_other_buckets_and_the_same_gradients(tmp_path: Path) -> None:
    plain = of_job(tmp_path / "plain", "threads", {"number": 1}, ranks=2)
    wanted = {"bucket_cap_mb": 1, "first_bucket_mib": 2, "gradient_as_bucket_view": True}
    run = of_job(tmp_path / "x", "ddp", wanted, ranks=2)
    assert run.problems("x") == {None}
    assert (run.seen("bucket", "baseline"), run.seen("bucket", "x")) == ({25}, {1})
    assert are_equal_at_the_start(losses(run), losses(plain))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("ddp", {"bucket_cap_mb": 1}),
        ("ddp_hook", {"hook": "powersgd", "rank": 1, "start": 2}),
        ("ddp_hook", {"hook": "topk", "percent": 10}),
        ("ddp_no_sync", {"passes": 2}),
    ],
)
def test_without_a_distributed_data_parallel_nothing_is_switched(
    tmp_path: Path, name: str, parameters: dict[str, Any]
) -> None:
    run = of_job(tmp_path, name, parameters)
    assert run.problems("x") == {"no DistributedDataParallel was trained"}


@pytest.mark.parametrize("hook", [{"hook": "powersgd", "rank": 1, "start": 2}, {"hook": "topk", "percent": 10}])
def test_a_hook_compresses_in_its_blocks_only(tmp_path: Path, hook: dict[str, Any]) -> None:
    plain = of_job(tmp_path / "plain", "threads", {"number": 1}, ranks=2, num_steps=40)
    run = of_job(tmp_path / "x", "ddp_hook", hook, ranks=2)
    assert run.problems("x") == {None}
    ours, theirs = losses(run), losses(plain)
    first = next(event["first"] for event in run.events if event["arm"] == "x")
    length = min(len(ours), len(theirs))
    assert first + 10 < length
    assert ours[: first + 1] == theirs[: first + 1]  # the first step with the hook begins with the same weights
    assert ours[first + 5 : length] != theirs[first + 5 : length]


def test_no_sync_reduces_the_last_pass_only_and_gives_the_same_mean(tmp_path: Path) -> None:
    plain = of_job(tmp_path / "plain", "threads", {"number": 1}, "accumulate", ranks=2)
    run = of_job(tmp_path / "x", "ddp_no_sync", {"passes": 2}, "accumulate", ranks=2)
    assert run.problems("x") == {None}
    length = min(len(losses(run)), len(losses(plain)))
    assert losses(run)[:length] == pytest.approx(losses(plain)[:length], rel=1e-4)


def test_autocast_is_on_in_its_blocks_only(plain: BlockEvents, tmp_path: Path) -> None:
    run = of_job(tmp_path, "autocast", {"dtype": "bfloat16"})
    assert run.problems("x") == {None}
    ours, theirs = losses(run), losses(plain)
    first = next(event["first"] for event in run.events if event["arm"] == "x")
    assert ours[:first] == theirs[:first]
    assert ours[first] != theirs[first]
    assert ours == pytest.approx(theirs[: len(ours)], rel=0.1)


def test_tf32_is_taken_back(tmp_path: Path) -> None:
    run = of_job(tmp_path, "tf32", {})
    assert run.problems("x") == {None}
    assert (run.seen("tf32", "baseline"), run.seen("tf32", "x")) == ({0}, {1})


def test_copies_that_are_never_made_are_a_problem(tmp_path: Path) -> None:
    run = of_job(tmp_path, "non_blocking_copies", {})
    assert run.problems("x") == {"there is no GPU to copy to"}


def test_several_settings_of_one_arm_are_switched_together(tmp_path: Path) -> None:
    settings = [("threads", {"number": 2}), ("garbage_collection", {"how": "off"}), ("tf32", {})]
    run = run_blocks(tmp_path / "r", settings, order=ORDER)
    assert run.done.code == 0, run.done.errors
    for name, off, on in (("threads", 1, 2), ("gc", 1, 0), ("tf32", 0, 1)):
        assert (run.seen(name, "baseline"), run.seen(name, "x")) == ({off}, {on})
