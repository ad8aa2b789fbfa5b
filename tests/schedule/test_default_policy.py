"""The rules of the default policy, each on a history whose times are worked out by hand, on both sides of its number.

Without a history a job's index is an hour, and after an hour the time that it has run; its level is the octave of the
index times GPUs ** 0.75. So a job on one GPU has level 11 at first, and level 13 after 8192 s.
"""

from __future__ import annotations

import pytest

from flatout.schedule.cluster import uniform
from flatout.schedule.engine import Simulation
from flatout.schedule.jobs import Assumptions, ClusterJob
from flatout.schedule.policies.default import Default
from flatout.schedule.result import Segment

LONG = 10**6


def job(submit_s: float, num_gpus: int, duration_s: float, **rest: object) -> ClusterJob:
    return ClusterJob(submit_s=submit_s, num_gpus=num_gpus, duration_s=duration_s, **rest)  # type: ignore[arg-type]


def segments(
    jobs: list[ClusterJob], *, nodes: int = 1, gpus: int = 1, checkpoint_s: float = 100.0
) -> dict[int, list[Segment]]:
    """Return the segments of each job under the default policy; a restart takes 10 s."""
    charged = Assumptions(checkpoint_s=checkpoint_s, restart_s=10.0)
    log = Simulation(jobs, uniform(nodes, gpus), Default(), assumptions=charged).run().log
    return {number: sorted(row for row in log if row.job == number) for number in range(len(jobs))}


def test_a_job_is_stopped_for_one_whose_index_is_two_octaves_better() -> None:
    """The new job has level 11, and the running one reaches level 13 after 8192 s."""
    rows = segments([job(0, 1, LONG), job(100, 1, 50)])
    assert rows[1][0].start_s == pytest.approx(8192, abs=0.1)


@pytest.mark.parametrize(
    ("since_checkpoint_s", "start_s"),
    [(599.0, 10_800 + 599.0), (601.0, 12_600.0)],
)
def test_a_job_that_would_lose_more_than_ten_minutes_is_stopped_at_its_next_checkpoint(
    since_checkpoint_s: float, start_s: float
) -> None:
    rows = segments([job(0, 1, LONG), job(10_800 + since_checkpoint_s, 1, 50)], checkpoint_s=1800.0)
    assert rows[1][0].start_s == start_s
    assert rows[0][0].lost_s == pytest.approx(start_s % 1800)


@pytest.mark.parametrize(
    ("since_start_s", "start_s"),
    [(301.0, 9020 + 301.0), (299.0, 9420.0)],  # the next attempt is on a whole minute, at least a minute later
)
def test_a_job_is_not_stopped_in_its_first_five_minutes(since_start_s: float, start_s: float) -> None:
    """The long job is stopped at 9000 s for one of 10 s, and works again at 9020 s."""
    jobs = [job(0, 1, LONG), job(9000, 1, 10), job(9020 + since_start_s, 1, 50)]
    rows = segments(jobs)
    assert rows[0][1].start_s == 9010
    assert rows[2][0].start_s == start_s


def test_a_job_that_waited_for_seven_days_has_a_turn_of_an_hour() -> None:
    """The user's jobs take 2,000,000 s, so that neither of the last two is better than the other by two octaves."""
    known = [job(0, 1, 2 * LONG, user="u") for _ in range(5)]
    rows = segments([*known, job(2 * LONG, 8, 2 * LONG, user="u"), job(2 * LONG + 10, 8, 2 * LONG, user="u")], gpus=8)
    turn = rows[6][0]
    assert turn.start_s == 2 * LONG + 10 + 7 * 86_400
    assert turn.end_s == turn.start_s + 3600
    assert turn.lost_s == 0
    assert (rows[5][0].end_s, rows[5][1].start_s) == (turn.start_s, turn.end_s)


def test_a_turn_ends_with_a_checkpoint_however_seldom_they_are() -> None:
    known = [job(0, 1, 2 * LONG, user="u") for _ in range(5)]
    jobs = [*known, job(2 * LONG, 8, 2 * LONG, user="u"), job(2 * LONG + 10, 8, 2 * LONG, user="u")]
    turn = segments(jobs, gpus=8, checkpoint_s=5000.0)[6][0]
    assert (turn.end_s - turn.start_s, turn.lost_s) == (5000, 0)


def test_a_turn_does_not_wait_for_a_checkpoint_that_hardly_comes() -> None:
    known = [job(0, 1, 2 * LONG, user="u") for _ in range(5)]
    jobs = [*known, job(2 * LONG, 8, 2 * LONG, user="u"), job(2 * LONG + 10, 8, 2 * LONG, user="u")]
    daily = segments(jobs, gpus=8, checkpoint_s=86_400.0)[6][0]
    assert daily.end_s - daily.start_s == 86_400
    rare = segments(jobs, gpus=8, checkpoint_s=86_401.0)[6][0]
    assert rare.end_s - rare.start_s < 86_400


def test_turns_go_to_those_that_waited_longest() -> None:
    """Three jobs take turns with a fourth: none has a second turn while another waits for its first."""
    known = [job(0, 1, 2 * LONG, user="u") for _ in range(5)]
    others = [job(2 * LONG + 10 * n, 8, 2 * LONG, user="u") for n in range(4)]
    rows = segments([*known, *others], gpus=8)
    firsts = [rows[number][0].start_s for number in (6, 7, 8)]
    assert firsts == sorted(firsts)
    assert rows[6][1].start_s > firsts[-1]
    waits = [
        after.start_s - before.end_s for n in (6, 7, 8) for before, after in zip(rows[n], rows[n][1:], strict=False)
    ]
    assert max(waits) < 14 * 86_400


def test_width_counts_for_less_than_its_gpus_but_for_more_than_its_root() -> None:
    """Jobs on 8 and 16 GPUs have level 14, and a job on 4 has level 13: log2(3600) is 11.81, plus 3/4 of log2(GPUs)."""
    rows = segments([job(0, 16, 3000), job(1, 16, 100), job(2, 8, 100)], nodes=2, gpus=8)
    assert (rows[1][0].start_s, rows[2][0].start_s) == (3000, 3100)
    rows = segments([job(0, 8, 3000), job(1, 8, 100), job(2, 4, 100)], gpus=8)
    assert (rows[2][0].start_s, rows[1][0].start_s) == (3000, 3100)
