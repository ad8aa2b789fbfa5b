"""The rules of the default policy, each on a history whose times are worked out by hand, on both sides of its number.

Without a history the index of a running job is 2 ** 0.25 times the beginning of the half octave that it has reached, of
64 s at the least; that of a waiting one, if a start costs 60 s, is 196 s, or 2 ** 7.62. The level is the octave of the
index times GPUs ** 0.75. So a waiting job on one GPU has level 7, and a running one has level 9 after 512 s.
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
    jobs: list[ClusterJob],
    *,
    nodes: int = 1,
    gpus: int = 1,
    checkpoint_s: float = 100.0,
    policy: type[Default] = Default,
) -> dict[int, list[Segment]]:
    """Return the segments of each job under the default policy; a restart takes 10 s."""
    charged = Assumptions(checkpoint_s=checkpoint_s, restart_s=10.0)
    log = Simulation(jobs, uniform(nodes, gpus), policy(), assumptions=charged).run().log
    return {number: sorted(row for row in log if row.job == number) for number in range(len(jobs))}


def test_a_job_is_stopped_for_one_whose_index_is_two_octaves_better() -> None:
    """The new job has level 7, and the running one reaches level 9 after 512 s."""
    rows = segments([job(0, 1, LONG), job(100, 1, 50)])
    assert rows[1][0].start_s == pytest.approx(512, abs=0.1)


@pytest.mark.parametrize(("checkpoint_s", "cost_s"), [(100.0, 60.0), (1000.0, 310.0), (5000.0, 310.0)])
def test_a_start_costs_a_restart_and_half_of_the_most_that_a_stop_loses(checkpoint_s: float, cost_s: float) -> None:
    policy = Default()
    assumed = Assumptions(checkpoint_s=checkpoint_s, restart_s=10.0)
    Simulation([job(0, 1, 50)], uniform(1, 1), policy, assumptions=assumed).run()
    assert policy._start_cost_s == [cost_s]


def test_a_small_chance_of_an_early_end_does_not_let_a_new_job_stop_others_that_are_like_it() -> None:
    """Of jobs like these a few end after 80 s, and most take half an hour: stopping one for another never pays."""
    jobs = [job(2000 * number, 1, 80 if number % 20 == 0 else 1800) for number in range(100)]
    jobs += [job(200_000 + number, 1, 1800) for number in range(10)]
    rows = segments(jobs, checkpoint_s=1800.0)
    assert [len(rows[number]) for number in range(100, 110)] == [1] * 10


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
    [(301.0, 9310 + 301.0), (299.0, 9720.0)],  # the next attempt is on a whole minute, at least a minute later
)
def test_a_job_is_not_stopped_before_it_has_worked_for_the_time_of_its_restart(
    since_start_s: float, start_s: float
) -> None:
    """The long job is stopped at 9000 s for one of 10 s, restarts for 300 s, and works again at 9310 s."""
    jobs = [job(0, 1, LONG, restart_s=300.0), job(9000, 1, 10), job(9310 + since_start_s, 1, 50)]
    rows = segments(jobs)
    assert (rows[0][1].start_s, rows[0][1].overhead_s) == (9010, 300)
    assert rows[2][0].start_s == start_s


class ByTeam(Default):
    """The default policy with levels by team, all alike without one: then jobs are stopped only for turns."""

    def level(self, job: int) -> int:
        team = self.sim.jobs[job].team
        if team == "improves":
            return 9 if self.sim.now < 800 else 0
        return {"good": 7, "bad": 8, "worst": 9}.get(team, 0)


def test_a_job_with_more_gpus_than_needed_is_stopped_only_if_no_other_suffices() -> None:
    """The wide job has the worst level, but stopping it would free a GPU that nobody waits for."""
    wide, new = job(0, 2, 5000, team="worst"), job(1000, 1, 50)
    narrow = [job(0, 1, 5000, team="bad") for _ in range(2)]
    rows = segments([wide, *narrow, new], nodes=2, gpus=2, policy=ByTeam)
    assert rows[3][0].start_s == 1000
    assert [len(rows[number]) for number in range(3)] == [1, 2, 1]
    assert segments([wide, new], gpus=2, policy=ByTeam)[1][0].start_s == 1000


@pytest.mark.parametrize(("since_checkpoint_s", "start_s"), [(351.0, 351.0), (353.0, 1800.0)])
def test_a_stop_must_be_worth_the_work_and_the_restart_that_it_costs(since_checkpoint_s: float, start_s: float) -> None:
    """Of 2 ** 9.5 s are left, after a restart of 10 s and the loss, twice 2 ** 7.5 s: if the loss is 352 s or less."""
    jobs = [job(0, 1, 5000, team="worst"), job(since_checkpoint_s, 1, 50, team="good")]
    rows = segments(jobs, checkpoint_s=1800.0, policy=ByTeam)
    assert rows[1][0].start_s == start_s


def test_a_waiting_job_gets_the_level_that_it_has_by_now_every_quarter_of_an_hour() -> None:
    rows = segments([job(0, 1, 5000, team="worst"), job(10, 1, 50, team="improves")], policy=ByTeam)
    assert rows[1][0].start_s == 900


def test_a_job_that_waited_for_seven_days_has_a_turn_of_an_hour() -> None:
    rows = segments([job(0, 1, 2 * LONG), job(10, 1, 2 * LONG)], policy=ByTeam)
    turn = rows[1][0]
    assert turn.start_s == 10 + 7 * 86_400
    assert turn.end_s == turn.start_s + 3600
    assert turn.lost_s == 0
    assert (rows[0][0].end_s, rows[0][1].start_s) == (turn.start_s, turn.end_s)


def test_a_turn_ends_with_a_checkpoint_however_seldom_they_are() -> None:
    turn = segments([job(0, 1, 2 * LONG), job(10, 1, 2 * LONG)], checkpoint_s=5000.0, policy=ByTeam)[1][0]
    assert (turn.end_s - turn.start_s, turn.lost_s) == (5000, 0)


def test_a_turn_does_not_wait_for_a_checkpoint_that_hardly_comes() -> None:
    jobs = [job(0, 1, 2 * LONG), job(10, 1, 2 * LONG)]
    daily = segments(jobs, checkpoint_s=86_400.0, policy=ByTeam)[1][0]
    assert daily.end_s - daily.start_s == 86_400
    rare = segments(jobs, checkpoint_s=86_401.0, policy=ByTeam)[1][0]
    assert rare.end_s - rare.start_s < 86_400


def test_turns_go_to_those_that_waited_longest() -> None:
    """Three jobs take turns with a fourth: none has a second turn while another waits for its first."""
    rows = segments([job(10 * number, 1, 2 * LONG) for number in range(4)], policy=ByTeam)
    firsts = [rows[number][0].start_s for number in (1, 2, 3)]
    assert firsts == sorted(firsts)
    assert rows[1][1].start_s > firsts[-1]
    waits = [
        after.start_s - before.end_s for n in (1, 2, 3) for before, after in zip(rows[n], rows[n][1:], strict=False)
    ]
    assert max(waits) < 14 * 86_400


def test_width_counts_for_less_than_its_gpus_but_for_more_than_its_root() -> None:
    """Waiting jobs on 4 GPUs and on 8 have level 9, on 3 level 8: 7.62, plus 3/4 of log2(GPUs)."""
    rows = segments([job(0, 8, 60), job(1, 8, 50), job(2, 4, 50)], gpus=8)
    assert (rows[1][0].start_s, rows[2][0].start_s) == (60, 110)
    rows = segments([job(0, 4, 60), job(1, 4, 50), job(2, 3, 50)], gpus=4)
    assert (rows[2][0].start_s, rows[1][0].start_s) == (60, 110)
