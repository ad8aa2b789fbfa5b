"""Blocks read back from step files: the steps of complete blocks, as all ranks recorded them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.trial import recordings

from flatout.records.recording import RankRecording, Recording
from flatout.trial.blocks import read_blocks


def event(block: int, arm: str, first: int, first_measured: int, end: int, **more: Any) -> dict[str, Any]:
    place = {"first": first, "first_measured": first_measured, "end": end}
    return {"event": "block", "block": block, "arm": arm, "is_switch": arm != "baseline", **place, **more}


def recording(folder: Path, ranks: Sequence[RankRecording], events: Sequence[Sequence[dict[str, Any]]]) -> Recording:
    for rank, lines in zip(ranks, events, strict=True):
        texts = [json.dumps(line, separators=(",", ":")) for line in lines]
        (folder / f"rank{rank.rank}.steps.jsonl").write_text("\n".join(texts) + "\n")
    return recordings.recording(folder, *ranks)


TWO = [event(0, "baseline", 1, 2, 4), event(1, "x", 4, 6, 8)]
STEPS = [[9.0, 9.0, 0.1, 0.2, 9.0, 9.0, 0.3, 0.4], [9.0, 9.0, 0.3, 0.4, 9.0, 9.0, 0.5, 0.6]]


def test_a_step_is_the_mean_over_the_ranks_and_carry_over_is_left_out(tmp_path: Path) -> None:
    ranks = [recordings.rank(number, durations) for number, durations in enumerate(STEPS)]
    first, second = read_blocks(recording(tmp_path, ranks, [TWO, TWO]))
    assert (first.arm, first.is_switch, first.num_carry_over) == ("baseline", False, 1)
    assert (second.arm, second.is_switch, second.num_carry_over) == ("x", True, 2)
    assert first.step_s == pytest.approx((0.2, 0.3))
    assert second.step_s == pytest.approx((0.4, 0.5))
    assert second.problem is None


def test_the_times_of_the_gpu_replace_those_of_the_host(tmp_path: Path) -> None:
    ranks = [recordings.rank(number, durations) for number, durations in enumerate(STEPS)]
    timed = [event(0, "baseline", 1, 2, 4, device_ns=[10_000_000, 30_000_000])]
    truncated = [event(0, "baseline", 1, 2, 4, device_ns=[10_000_000])]
    (both,) = read_blocks(recording(tmp_path, ranks, [timed, timed]))
    assert both.step_s == pytest.approx((0.01, 0.03))
    (one,) = read_blocks(recording(tmp_path, ranks, [timed, truncated]))
    assert one.step_s == pytest.approx(((0.01 + 0.3) / 2, (0.03 + 0.4) / 2))


def test_periodic_work_is_told_apart_and_is_at_most_the_step(tmp_path: Path) -> None:
    rank = recordings.rank(0, STEPS[0])
    steps = msgspec.structs.replace(
        rank.steps,
        evaluation_s=np.array([0, 0, 0.05, 0, 0, 0, 0, 7.0]),
        logging_s=np.array([0, 0, 0.01, 0, 0, 0, 0, 0.0]),
        collection_s=np.full(8, 0.5),
    )
    alone = msgspec.structs.replace(rank, steps=steps, world_size=1)
    first, second = read_blocks(recording(tmp_path, [alone], [TWO]))
    assert first.periodic_s == pytest.approx((0.06, 0.0))
    assert second.periodic_s == pytest.approx((0.0, 0.4))


@pytest.mark.parametrize(
    "events",
    [
        [TWO, TWO[:1]],  # the second rank was stopped in the second block
        [TWO, [TWO[0], event(1, "x", 4, 7, 8)]],  # the ranks did different things
        [TWO, [TWO[0], event(1, "y", 4, 6, 8)]],
        [[TWO[0], event(1, "x", 4, 6, 9)]] * 2,  # a step of it was not written
    ],
)
def test_a_block_that_not_all_ranks_completed_alike_is_not_read(
    tmp_path: Path, events: Sequence[Sequence[dict[str, Any]]]
) -> None:
    ranks = [recordings.rank(number, durations) for number, durations in enumerate(STEPS)]
    assert [block.number for block in read_blocks(recording(tmp_path, ranks, events))] == [0]


def test_a_problem_of_any_rank_is_the_problem_of_the_block(tmp_path: Path) -> None:
    ranks = [recordings.rank(number, durations) for number, durations in enumerate(STEPS)]
    of_one = [TWO[0], event(1, "x", 4, 6, 8, problem="there is one NUMA node")]
    blocks = read_blocks(recording(tmp_path, ranks, [TWO, of_one]))
    assert [block.problem for block in blocks] == [None, "there is one NUMA node"]


def test_blocks_before_a_restart_of_the_steps_do_not_count(tmp_path: Path) -> None:
    alone = msgspec.structs.replace(recordings.rank(0, STEPS[0]), world_size=1)
    lines = [event(0, "x", 0, 1, 2), event(5, "x", 0, 1, 2), {"event": "restart"}, *TWO]
    assert [block.number for block in read_blocks(recording(tmp_path, [alone], [lines]))] == [0, 1]


def test_without_all_ranks_there_are_no_blocks(tmp_path: Path) -> None:
    ranks = [recordings.rank(0, STEPS[0])]  # of two
    assert read_blocks(recording(tmp_path, ranks, [TWO])) == ()
    assert read_blocks(recording(tmp_path, [], [])) == ()
