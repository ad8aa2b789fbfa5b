"""Where the wall time of a recording went: parts by hand, their sum, and a timeline in which no stall vanishes."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.step_log.recorded_ranks import FIRST_NS, rank_of, steps_of
from tests.trial.recordings import measured

from flatout.attribute.recorded_time import MOST_BINS_OF_ALL, MOST_LANES, recorded_time
from flatout.records.recorded_time import RecordedTime, WallPart
from flatout.records.recording import HostRecording, RankRecording, Recording, Steps
from flatout.step_log.job_log import job_log

BEFORE_S, AFTER_S = 20.0, 3.0


def recorded(*ranks: RankRecording, before_s: float = BEFORE_S, after_s: float | None = AFTER_S) -> RecordedTime:
    """Return the time of a recording whose command starts before the first step and ends after the longest rank."""
    start_s = FIRST_NS / 1e9 - before_s
    last_s = max(rank.steps.start_ns[-1] / 1e9 + rank.steps.duration_s[-1] for rank in ranks)
    run = HostRecording(
        tool_version="0",
        command=("torchrun",),
        run_id="r",
        hostname="node0",
        is_light=False,
        start_unix_s=start_s,
        end_unix_s=None if after_s is None else last_s + after_s,
    )
    recording = Recording(path="r", ranks=ranks, hosts=(), runs=(run,), measured=measured(), problems=())
    log = job_log(ranks)
    assert log is not None
    return recorded_time(recording, log)


def shifted(steps: Steps, step: int, gap_s: float) -> Steps:
    """Return the steps with a gap before one of them."""
    return msgspec.structs.replace(steps, start_ns=steps.start_ns + (steps.number >= step) * int(gap_s * 1e9))


def test_checkpoints_that_the_other_rank_waits_for_are_stalls() -> None:
    """In a job with 100 steps of 10 ms, rank 0 writes a checkpoint for 500 ms in steps 20, 40, 60 and 80."""
    times = dict.fromkeys((20, 40, 60, 80), 0.5)
    durations = [0.010 + times.get(step, 0.0) for step in range(100)]
    found = recorded(rank_of(0, steps_of(durations, checkpoint_s=times)), rank_of(1, steps_of(durations)))
    assert found.parts_s == pytest.approx(
        {
            "before_first_step": 20.0,
            "warm_up": 0.0,
            "regular_steps": 1.0,
            "stalls": 2.0,
            "recorder": 0.0,
            "not_recorded": 0.0,
            "after_last_step": 3.0,
        },
        abs=1e-6,
    )
    assert found.stalls_s == pytest.approx({"checkpoint": 2.0})
    assert (found.num_steps, found.wall_s) == (100, pytest.approx(26.0))
    (first, second) = found.timeline.lanes
    assert [step for step, kind in enumerate(first.kinds) if kind == "s"] == [20, 40, 60, 80]
    assert first.kinds == second.kinds


def test_what_the_first_steps_take_longer_is_warm_up() -> None:
    """Step 9 is the last of the warm-up: what it takes longer is no stall; what step 10 takes longer is one."""
    durations = [0.010] * 100
    durations[0], durations[9], durations[10] = 5.010, 1.010, 2.010
    kind = ["first"] + [""] * 99
    found = recorded(rank_of(0, steps_of(durations, kind)), rank_of(1, steps_of(durations, kind)))
    assert found.parts_s["warm_up"] == pytest.approx(6.0, abs=1e-3)
    assert found.parts_s["stalls"] == pytest.approx(2.0, abs=1e-3)
    assert found.timeline.lanes[0].kinds[:12] == "wwwwwwwwwws."


def test_the_recorder_has_what_it_adds_to_its_steps_and_the_time_between_them() -> None:
    durations = [0.010] * 100
    kind = [""] * 100
    durations[50], kind[50] = 0.310, "traced"
    steps = shifted(steps_of(durations, kind), 51, 2.0)
    found = recorded(rank_of(0, steps), rank_of(1, steps))
    assert found.parts_s["recorder"] == pytest.approx(2.3, abs=1e-6)
    assert found.parts_s["regular_steps"] == pytest.approx(1.0, abs=1e-6)
    assert found.timeline.lanes[0].kinds[49:52] == ".r."


def test_steps_whose_records_are_lost_are_named() -> None:
    steps = shifted(steps_of([0.010] * 100), 60, 1.0)
    steps = msgspec.structs.replace(steps, number=steps.number + (steps.number >= 60) * 40)
    found = recorded(rank_of(0, steps))
    assert found.parts_s["not_recorded"] == pytest.approx(1.0, abs=1e-6)
    assert found.parts_s["recorder"] == pytest.approx(0.0, abs=1e-6)


def test_a_rank_that_leaves_early_ends_early() -> None:
    found = recorded(rank_of(0, steps_of([0.010] * 100)), rank_of(1, steps_of([0.010] * 50)))
    assert found.parts_s["after_last_step"] == pytest.approx(AFTER_S + 0.25, abs=1e-6)  # mean of 3.0 and 3.5
    assert found.timeline.lanes[1].kinds[49:51] == ".-"


def test_a_command_that_still_runs_ends_with_its_last_step() -> None:
    found = recorded(rank_of(0, steps_of([0.010] * 20)), after_s=None)
    assert found.parts_s["after_last_step"] == 0


def test_a_clock_that_is_off_makes_no_negative_part() -> None:
    found = recorded(rank_of(0, steps_of([0.010] * 20)), before_s=-5.0, after_s=-1.0)
    assert min(found.parts_s.values()) >= 0
    assert sum(found.parts_s.values()) == pytest.approx(found.wall_s, abs=1e-6)


seconds = st.floats(1e-4, 2.0)
kinds = st.sampled_from(["", "", "", "", "flops", "prepare", "traced", "recovery"])
rank_steps = st.lists(st.tuples(seconds, kinds, st.floats(0, 1), st.floats(0, 0.5)), min_size=3, max_size=40)


@settings(max_examples=60, deadline=None)
@given(st.lists(rank_steps, min_size=1, max_size=4))
def test_the_parts_sum_to_the_wall_time(drawn: list[list[tuple[float, str, float, float]]]) -> None:
    ranks = []
    for number, rows in enumerate(drawn):
        durations = [row[0] for row in rows]
        checkpoints = {step: row[0] * row[2] for step, row in enumerate(rows)}
        kind = ["first", "", *[row[1] for row in rows[2:]]]
        steps = steps_of(durations, kind, checkpoint_s=checkpoints)
        gaps_ns = (np.cumsum([0.0, *[row[3] for row in rows[1:]]]) * 1e9).astype(np.int64)
        ranks.append(rank_of(number, msgspec.structs.replace(steps, start_ns=steps.start_ns + gaps_ns)))
    found = recorded(*ranks)
    assert list(found.parts_s) == [str(part) for part in WallPart]
    assert sum(found.parts_s.values()) == pytest.approx(found.wall_s, abs=1e-5)
    assert min(found.parts_s.values()) >= -1e-6
    assert sum(found.stalls_s.values()) == pytest.approx(found.parts_s["stalls"], abs=1e-6)


@pytest.mark.parametrize("stalled", [10, 12_345, 99_999])
def test_no_stall_vanishes_from_a_long_recording(stalled: int) -> None:
    durations = np.full(100_000, 0.010)
    durations[stalled] = 0.510
    timeline = recorded(rank_of(0, steps_of(durations.tolist())), rank_of(1, steps_of(durations.tolist()))).timeline
    for lane in timeline.lanes:
        assert lane.kinds.count("s") == 1
        assert lane.kinds.index("s") == stalled // timeline.steps_per_bin
        assert max(lane.longest_s) == pytest.approx(0.510)


def test_a_timeline_stays_small_with_many_ranks() -> None:
    durations = [0.010] * 300
    slow = [*durations[:-1], 0.5]
    ranks = [rank_of(rank, steps_of(slow if rank == 177 else durations)) for rank in range(200)]
    timeline = recorded(*ranks).timeline
    assert len(timeline.lanes) == MOST_LANES
    assert sum(len(lane.kinds) for lane in timeline.lanes) <= MOST_BINS_OF_ALL
    assert [rank for lane in timeline.lanes for rank in lane.ranks] == list(range(200))
    (stalled,) = (lane for lane in timeline.lanes if "s" in lane.kinds)
    assert 177 in stalled.ranks and stalled.kinds.endswith("s")
