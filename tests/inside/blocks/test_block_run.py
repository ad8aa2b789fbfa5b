"""Blocks in real jobs: all ranks switch at the planned steps, and take every change back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.inside.blocks.runs import MOST_STEPS, run_blocks

from flatout.inside.blocks.arms import ArmSwitcher
from flatout.inside.blocks.block_run import BLOCKS
from flatout.inside.blocks.schedule import ScheduledArm, read_schedule
from flatout.inside.identity import Identity
from flatout.inside.phases.consensus import TracePlan
from flatout.inside.phases.phases import Phases
from flatout.inside.protocol import STEP_COLUMNS
from flatout.inside.recording.step_detector import StepSource
from flatout.inside.recording.step_file import StepFile
from flatout.inside.settings import RecorderSettings

pytestmark = pytest.mark.usefixtures("warm")


def test_a_job_switches_at_the_planned_steps_and_is_stopped_after_the_last_block(tmp_path: Path) -> None:
    run = run_blocks(tmp_path / "r", [("threads", {"number": 2})], order=(0, 1, 1, 0, 1, 0, 0, 1))
    assert run.done.code == 0, run.done.errors
    assert run.done.log == ""
    assert [event["arm"] for event in run.events] == [
        "baseline",
        "x",
        "x",
        "baseline",
        "x",
        "baseline",
        "baseline",
        "x",
    ]
    assert [event["is_switch"] for event in run.events] == [False, True, False, True, True, True, False, True]
    carry_over = [event["first_measured"] - event["first"] for event in run.events]
    assert carry_over == [1, 2, 1, 2, 2, 2, 1, 2]
    assert all(event["end"] - event["first_measured"] == 3 for event in run.events)
    assert all(before["end"] == after["first"] for before, after in zip(run.events, run.events[1:], strict=False))
    assert (run.seen("threads", "baseline"), run.seen("threads", "x")) == ({1}, {2})
    assert len(run.steps) == run.events[-1]["end"] < MOST_STEPS


def test_the_first_steps_of_each_block_are_marked_and_the_others_are_ordinary(tmp_path: Path) -> None:
    run = run_blocks(tmp_path / "r", [("threads", {"number": 2})])
    lines = [json.loads(line) for line in (tmp_path / "r" / "rank0.steps.jsonl").read_text().splitlines()]
    kinds = {line[0]: line[STEP_COLUMNS.index("kind")] for line in lines if isinstance(line, list)}
    for event in run.events:
        assert {kinds[step] for step in range(event["first"], event["first_measured"])} == {"switched"}
        assert {kinds[step] for step in range(event["first_measured"], event["end"])} == {""}


def test_two_ranks_switch_at_the_same_steps(tmp_path: Path) -> None:
    setting = ("garbage_collection", {"how": "off"})
    order = (0, 1, 1, 0) * 3
    run = run_blocks(tmp_path / "r", [setting], ranks=2, order=order, num_steps=12, drops_slow_arms=True)
    assert run.done.code == 0, run.done.errors
    assert run.done.log == ""
    assert (run.seen("gc", "baseline"), run.seen("gc", "x")) == ({1}, {0})
    by_rank = [
        [line for line in (tmp_path / "r" / f"rank{rank}.steps.jsonl").read_text().splitlines() if '"block"' in line]
        for rank in (0, 1)
    ]
    assert len(by_rank[0]) in (4, 8, 12)  # units; on a busy machine an arm can be dropped
    assert by_rank[0] == by_rank[1]


@pytest.mark.parametrize(
    ("settings", "options", "problem"),
    [
        (("garbage_collection", {"how": "off"}), ["gc-off"], "the script turns the garbage collector off itself"),
        (
            ("bind_cores", {"by": "exclusive"}),
            [],
            "the local rank and the number of ranks on this host are unknown",
        ),
        (("compile", {"mode": "default"}), [], "compile cannot be switched while the job runs"),
        (
            ("garbage_collection", {"how": "freeze"}),
            [],
            "installing garbage_collection failed: ValueError: frozen objects cannot be taken back without a full"
            " collection",
        ),
    ],
)
def test_a_setting_that_does_not_fit_is_named_and_the_job_goes_on(
    tmp_path: Path, settings: tuple[str, dict[str, object]], options: list[str], problem: str
) -> None:
    run = run_blocks(tmp_path / "r", [settings], *options)
    assert run.done.code == 0, run.done.errors
    assert (run.problems("x"), run.problems("baseline")) == ({problem}, {None})


def test_each_rank_is_bound_to_its_cores_in_its_blocks_only(tmp_path: Path) -> None:
    import os

    allowed = len(os.sched_getaffinity(0))
    if allowed < 2:
        pytest.skip("needs two cores")
    run = run_blocks(tmp_path / "r", [("bind_cores", {"by": "exclusive"})], ranks=2)
    assert run.done.code == 0, run.done.errors
    assert (run.seen("cores", "baseline"), run.seen("cores", "x")) == ({allowed}, {allowed // 2})


def test_a_rank_that_reads_the_plan_of_the_trace_late_still_switches_at_its_own_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its steps must be reported one by one, although there is no trace for it any more."""
    schedule = {"arms": [], "order": [0], "min_steps": 3, "min_block_s": 0.0, "max_s": 9.0}
    monkeypatch.setattr(BLOCKS, "schedule", read_schedule(json.dumps(schedule)))
    monkeypatch.setattr(BLOCKS, "arms", [ArmSwitcher(ScheduledArm(name="baseline"))])
    settings = RecorderSettings(recording=tmp_path, is_light=True, has_facts=False, has_blocks=True)
    settings.state.mkdir()
    identity = Identity(rank=1, world_size=2, local_rank=1, backend="gloo", num_nodes=1)
    phases = Phases(settings, identity, StepFile(tmp_path, 1, {}))
    plan = TracePlan(settled=3, flops_step=5, start=None, num_steps=3)
    (settings.state / "plan-0").write_text(json.dumps(asdict(plan)) + "\n")
    phases.advance(9, StepSource.OPTIMIZER, is_training=True)
    assert phases.is_decided
    assert phases.is_exact


def test_a_schedule_that_cannot_be_read_leaves_the_job_as_it_was(tmp_path: Path) -> None:
    from tests.inside.blocks.runs import JOB
    from tests.inside.patches import runs

    done = runs.run(tmp_path / "r", 12, job=JOB, is_recorded=True, FLATOUT_LIGHT="1", FLATOUT_BLOCKS='{"arms": 3}')
    assert done.code == 0, done.errors
    assert len(done.output) == 12
    assert "error in _prepare_blocks" in done.log
