"""How soon jobs end, from those that ended and those that have not: by hand, and against the durations themselves."""

from __future__ import annotations

import math
import random

import pytest

from flatout.schedule.durations import NUM_BUCKETS, bucket_of, edge, middle
from flatout.schedule.hazards import _UNKNOWN, SHORTEST, Hazards, _Group, hazards_of, reciprocal_index
from flatout.schedule.jobs import ClusterJob


def evidence(durations_s: list[float], ages_s: list[float] | None = None) -> Hazards:
    """Return the evidence of jobs that ended, and of others that have run for `ages_s`; job 0 has not started."""
    running = ages_s or []
    count = 1 + len(durations_s) + len(running)
    first_running = 1 + len(durations_s)
    hazards = Hazards(
        [ClusterJob(submit_s=0, num_gpus=1, duration_s=1) for _ in range(count)],
        lambda job: running[job - first_running],
    )
    for job in range(1, count):
        hazards.started(job)
    for job, duration_s in enumerate(durations_s, 1):
        hazards.ended(job, duration_s)
    return hazards


def best_stop(durations_s: list[float], age_s: float) -> float:
    """Return the least time used for each ended job, over all times to stop, from the durations themselves.

    Only times by which a twentieth have ended: the very first ends are chance.
    """
    alive = sorted(duration - age_s for duration in durations_s if duration > age_s)
    used_until = [sum(alive[: number + 1]) + (len(alive) - number - 1) * stop_s for number, stop_s in enumerate(alive)]
    per_ended = [used / (number + 1) for number, used in enumerate(used_until)]
    return min(per_ended[len(alive) // 20 :])


@pytest.mark.parametrize("bucket", [12, 25, 40])
def test_without_evidence_a_job_is_expected_to_run_about_as_long_again(bucket: int) -> None:
    assert evidence([]).index(0, bucket, 0.0) == pytest.approx(edge(bucket) * 2**0.25)


def test_what_a_start_costs_counts_until_the_job_ends_or_stops() -> None:
    """One job in ten ends in the first half octave, all others in the second: alone the first is worth a try."""
    hazards = [0.1, 1.0, *[1.0] * 54]
    short_s, width_s, long_s = 2**0.25 - 1, 2**0.5 - 1, 2**0.75 - 2**0.5
    stop_s, go_on_s = 0.1 * short_s + 0.9 * width_s, 0.1 * short_s + 0.9 * (width_s + long_s)
    assert reciprocal_index(hazards, 0, 50.0) == pytest.approx(50 + go_on_s)
    assert reciprocal_index(hazards, 0, 50.0) < (50 + stop_s) / 0.1


@pytest.mark.parametrize("age_s", [64.0, 1024.0, 16_384.0])
def test_with_much_evidence_the_index_is_that_of_the_durations(age_s: float) -> None:
    draw = random.Random(1)
    durations_s = [draw.lognormvariate(8, 2) for _ in range(3000)]
    index = evidence(durations_s).index(0, bucket_of(age_s), 0.0)
    assert index == pytest.approx(best_stop(durations_s, age_s), rel=0.2)


def test_the_hazard_of_a_group_counts_jobs_that_have_not_ended() -> None:
    """Of 11 that reached the half octave at 32 s, 4 ended in it; 2 are in it now, half of each; 6 are beyond it."""
    jobs = [ClusterJob(submit_s=0, num_gpus=1, duration_s=1) for _ in range(12)]
    ages_s = [33.0] * 2 + [70.0] * 6
    hazards_by_job = Hazards(jobs, lambda job: ages_s[job])
    for job in range(12):
        hazards_by_job.started(job)
    for job in range(8, 12):
        hazards_by_job.ended(job, 33.0)
    kind = hazards_by_job._kind(0, 0.0)
    hazards = hazards_of(kind.groups[0], None, _UNKNOWN)
    expected = 1 - 0.5**0.5
    assert hazards[9] == pytest.approx(3 * expected / (12 + 3))
    assert hazards[10] == pytest.approx((4 + 3 * expected) / (11 + 3))
    assert hazards[12] == pytest.approx(3 * expected / (3 + 3))
    assert hazards[13] == pytest.approx(expected)


def test_jobs_that_run_for_days_are_seen_before_the_first_of_them_ends() -> None:
    """Of 20 that reached an hour none has ended: a hazard of 3 h / 23, and to go on for a half octave is the best."""
    ended_s, hour = [100.0] * 10, bucket_of(3600)
    alone = evidence(ended_s).index(0, hour, 0.0)
    with_long_ones = evidence(ended_s, [300_000.0] * 20).index(0, hour, 0.0)
    hazard = 3 * (1 - 0.5**0.5) / 23
    assert alone == pytest.approx(edge(hour) * 2**0.25)
    assert with_long_ones == pytest.approx(edge(hour) * (2**0.25 - 1 + (1 - hazard) / hazard * (2**0.5 - 1)))


@pytest.mark.parametrize(("now", "is_new"), [(899.0, False), (900.0, True)])
def test_running_jobs_are_looked_at_again_every_quarter_of_an_hour(now: float, is_new: bool) -> None:
    ages_s = [200.0] * 10
    hazards = evidence([], ages_s)
    before = hazards.index(0, 20, 0.0)
    ages_s[:] = [200.0 + now] * 10  # the half octave begins at 1,024 s
    assert (hazards.index(0, 20, now) != before) == is_new


@pytest.mark.parametrize(("num_more", "is_new"), [(1, False), (2, True)])
def test_ended_jobs_count_when_they_are_a_tenth_more(num_more: int, is_new: bool) -> None:
    hazards = evidence([3000.0] * 10, [1000.0, 1000.0])
    before = hazards.index(0, 20, 0.0)
    for job in range(11, 11 + num_more):
        hazards.ended(job, 1500.0)
    assert (hazards.index(0, 20, 0.0) != before) == is_new


def test_of_a_larger_group_only_its_other_jobs_are_expected_of_the_smaller_one() -> None:
    """Of 10 other jobs 5 ended at 32 s, and of the group's own 4 none: (5 + 3 h) / 13, and 3 of that in 7."""
    smaller, larger = _Group(), _Group()
    larger.ended[10] = 5
    larger.reached[10], smaller.reached[10] = 14.0, 4.0
    others = hazards_of(larger, smaller, _UNKNOWN)
    assert others[10] == pytest.approx((5 + 3 * (1 - 0.5**0.5)) / 13)
    assert hazards_of(smaller, None, others)[10] == pytest.approx(3 * others[10] / 7)


def test_a_user_s_own_jobs_decide_where_there_are_many() -> None:
    jobs = [ClusterJob(submit_s=0, num_gpus=1, duration_s=1, user=user) for user in ["quick"] * 51 + ["slow"] * 51]
    hazards = Hazards(jobs, lambda job: 0.0)
    for job in range(1, 51):
        hazards.ended(job, 100.0)
        hazards.ended(51 + job, 50_000.0)
    alone = hazards.index(0, 12, 0.0)
    assert alone < 150
    assert hazards.index(51, 12, 0.0) > 4 * alone


def reached_by(ended_s: list[float | None], ages_s: list[float]) -> list[float]:
    """Return how many jobs reached each half octave; a job that is in it, and has not ended, is half a job."""
    reached = [0.0] * NUM_BUCKETS
    for duration_s, age_s in zip(ended_s, ages_s, strict=True):
        last = bucket_of(age_s if duration_s is None else duration_s)
        for bucket in range(last):
            reached[bucket] += 1.0
        reached[last] += 0.5 if duration_s is None else 1.0
    return reached


def test_hazards_equal_those_of_a_count_of_all_jobs_at_each_look() -> None:
    """Jobs start, stop, go on and end at random; each group is counted anew from the ages of its jobs."""
    draw = random.Random(3)
    jobs = [ClusterJob(submit_s=0, num_gpus=draw.choice([1, 2]), duration_s=1, team="t") for _ in range(60)]
    held_s, since_s, ended_s = [0.0] * 60, dict[int, float](), dict[int, float]()
    now, begun = 0.0, set[int]()

    def age(job: int) -> float:
        return held_s[job] + (now - since_s[job] if job in since_s else 0.0)

    hazards = Hazards(jobs, age)
    num_compared = 0
    for _ in range(400):
        now += draw.choice([1.0, 30.0, 450.0, 900.0])
        looked_at = draw.randrange(60)
        group = hazards._kind(looked_at, now).groups[0]
        if group.counted_s == now:
            alike = [job for job in begun if jobs[job].num_gpus == jobs[looked_at].num_gpus]
            expected = reached_by([ended_s.get(job) for job in alike], [age(job) for job in alike])
            assert group.reached.tolist()[SHORTEST:] == expected[SHORTEST:]
            num_compared += 1
        job = draw.randrange(60)
        if job in ended_s:
            continue
        if job not in since_s:
            hazards.started(job)
            since_s[job] = now
            begun.add(job)
            continue
        held_s[job] = age(job)
        del since_s[job]
        if draw.random() < 0.4:
            hazards.ended(job, held_s[job])
            ended_s[job] = held_s[job]
    assert num_compared > 100
    assert len(ended_s) > 20


def test_an_index_is_the_least_over_all_stopping_times() -> None:
    """The search ends early; here all stopping times are tried, with hazards that rise late and fall late."""
    draw = random.Random(2)
    for _ in range(200):
        hazards = [draw.choice([0.001, 0.05, 0.3, 0.9]) for _ in range(NUM_BUCKETS)]
        first = draw.randrange(12, 40)
        least, used_s, left = math.inf, 0.0, 1.0
        for bucket in range(first, NUM_BUCKETS):
            ends = left * hazards[bucket]
            left -= ends
            used_s += ends * (middle(bucket) - edge(bucket)) + left * (edge(bucket + 1) - edge(bucket))
            least = min(least, used_s / (1 - left))
            if left < 1e-3:
                break
        assert reciprocal_index(hazards, first) == least
