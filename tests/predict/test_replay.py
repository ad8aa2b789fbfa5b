from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from tests.diagnose.conftest import Diagnose
from tests.diagnose.test_known_causes import ALL
from tests.predict.jobs import attributed, loading_job, reducing_job, situation

from flatout.predict.replay import TraceReplayer
from flatout.predict.situation import Situation
from flatout.records.change import JobFacts
from flatout.records.track import Spent


@pytest.mark.parametrize("name", ALL)
def test_a_replay_without_a_change_takes_as_long_as_the_recording(known: Diagnose, name: str) -> None:
    job = known(name).job
    replay = TraceReplayer(job)
    begins = replay.step_begins_ns(replay.edits())
    origin = min(track.origin_ns for track in replay.tracks.values())
    for timeline in job.timelines:
        seen = [step.start_ns - origin for step in timeline.steps] + [timeline.steps[-1].end_ns - origin]
        assert np.abs(begins[timeline.rank] - seen).max() <= 0.02 * (seen[-1] - seen[0]) / len(timeline.steps)
    assert replay.step_s(replay.edits()) == pytest.approx(replay.seen_step_s(job), rel=0.01)
    assert replay.num_forced == 0


# In these the traced steps are none of those that the untraced time is the mean of, or no host time is the difference.
OTHER_STEPS = {"ckpt_stall": 0.4, "ddp_fp32": 0.06}


@pytest.mark.parametrize("name", ALL)
def test_host_times_are_scaled_until_the_untraced_step_comes_out(
    known: Diagnose, untraced_step_s: Callable[[str], float], name: str
) -> None:
    made = Situation(known(name).job, JobFacts(), untraced_step_s(name))
    assert 0.3 <= made.host_scale <= 1.0
    assert made.step_s == pytest.approx(untraced_step_s(name), rel=OTHER_STEPS.get(name, 0.05))


def test_host_time_that_the_gpu_hides_costs_nothing() -> None:
    made = situation(loading_job(load_us=0, compute_us=1000))
    edits = made.edits()
    edits[0].spent_ns[:, Spent.HOST] *= 0.5
    assert made.replay.step_s(edits) == pytest.approx(made.step_s, rel=0.02)


def test_the_host_waits_for_the_work_that_a_synchronising_call_waited_for() -> None:
    made = situation(loading_job(load_us=200, compute_us=1000))
    edits = made.edits()
    edits[0].duration_ns *= 2
    assert made.replay.step_s(edits) - made.step_s == pytest.approx(1000e-6, rel=0.02)


def test_a_collective_begins_when_the_last_rank_has_arrived() -> None:
    job = attributed(*reducing_job(passes=1, reduce_us=50, late_us=(0, 200)))
    replay = TraceReplayer(job)
    seen_s = replay.step_s(replay.edits())
    edits = replay.edits()
    late = replay.tracks[1].work != 3
    edits[1].duration_ns[late] -= 150_000
    assert seen_s - replay.step_s(edits) == pytest.approx(150e-6, rel=0.05)
    edits = replay.edits()
    edits[0].duration_ns[replay.tracks[0].work != 3] += 150_000  # still not the last
    assert replay.step_s(edits) == pytest.approx(seen_s, rel=0.02)


def test_ranks_that_wait_for_a_collective_nobody_else_has_go_on() -> None:
    first, second = reducing_job(passes=2, reduce_us=50)
    replay = TraceReplayer(attributed(first, second))
    edits = replay.edits()
    assert replay.step_s(edits) > 0


def test_a_wait_for_work_that_is_launched_later_holds_up_nothing() -> None:
    """On the CPU a call may seem to wait for a collective that another thread begins after it."""
    job = attributed(*reducing_job(passes=1, reduce_us=50, late_us=(0, 200)))
    expected_s = TraceReplayer(job).step_s(TraceReplayer(job).edits())
    replay = TraceReplayer(job)
    for rank, track in replay.tracks.items():
        waits = track.waits_for.copy()
        waits[0] = len(track.work) - 1
        replay.tracks[rank] = msgspec.structs.replace(track, waits_for=waits)
    assert replay.step_s(replay.edits()) == pytest.approx(expected_s, rel=0.1)
    assert replay.num_forced > 0
