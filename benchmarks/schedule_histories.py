"""Histories of jobs on which policies are compared: cuts of Philly and openb, and some made from distributions.

`FIRST`, `SECOND` and `THIRD` are those that the rules of the policy `flatout` are chosen on. `HELD_OUT` was held out
until its failures were looked at; on `HELD_OUT_AGAIN` nothing is chosen. If `count` is 800, no cut shares a job with a
cut of the same team in another set. The distributions are the same in all sets, with other seeds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from flatout.schedule.jobs import ClusterJob
from flatout.schedule.load import openb, philly

HOUR, DAY = 3600.0, 86_400.0


class History(msgspec.Struct, frozen=True):
    """Jobs, and the number of 8-GPU nodes that they are replayed on."""

    name: str
    jobs: list[ClusterJob]
    num_nodes: int


class Cut(NamedTuple):
    """Jobs of a team, or of several, from a place in their history on: a share of it, of which -1 is the end."""

    name: str
    of: str
    start: float
    num_nodes: int


class Set(NamedTuple):
    """A set of histories; of the sampled ones every n-th job is taken, from this share of n on."""

    name: str
    first_seed: int
    sample_from: float
    cuts: tuple[Cut, ...]


FIRST = Set(
    "first",
    1,
    0,
    (
        Cut("philly b436b2", "b436b2", 0, 8),
        Cut("philly 6c71a0", "6c71a0", -1, 8),
        Cut("philly 11cb48", "11cb48", 0, 2),
        Cut("philly 6214e9", "6214e9", 1 / 2, 2),
        Cut("philly wide teams", "wide", 0, 24),
        Cut("philly 0e4a51", "0e4a51", 0, 4),
        Cut("philly first weeks", "narrow", 0, 8),
        Cut("philly last weeks", "narrow", -1, 8),
    ),
)
SECOND = Set(
    "second",
    101,
    1 / 2,
    (
        Cut("philly b436b2, last", "b436b2", -1, 8),
        Cut("philly 6c71a0, first", "6c71a0", 0, 8),
        Cut("philly 11cb48, last", "11cb48", -1, 2),
        Cut("philly 6214e9, first", "6214e9", 0, 2),
        Cut("philly wide teams, last", "wide", -1, 24),
        Cut("philly 103959", "103959", 0, 4),
        Cut("philly ed69ec", "ed69ec", 0, 8),
        Cut("philly middle weeks", "narrow", 1 / 2, 8),
    ),
)
HELD_OUT = Set(
    "held-out",
    201,
    1 / 4,
    (
        Cut("philly b436b2, middle", "b436b2", 1 / 3, 8),
        Cut("philly 6c71a0, middle", "6c71a0", 1 / 3, 8),
        Cut("philly 11cb48, middle", "11cb48", 1 / 3, 2),
        Cut("philly 6214e9, later", "6214e9", 3 / 4, 2),
        Cut("philly wide teams, middle", "wide", 1 / 3, 24),
        Cut("philly 103959, last", "103959", -1, 4),
        Cut("philly early weeks", "narrow", 1 / 4, 8),
        Cut("philly late weeks", "narrow", 3 / 4, 8),
    ),
)
THIRD = Set(
    "third",
    301,
    0.72,
    (
        Cut("philly b436b2, half", "b436b2", 1 / 2, 8),
        Cut("philly b436b2, fifth", "b436b2", 1 / 5, 4),
        Cut("philly 6c71a0, fifth", "6c71a0", 1 / 5, 8),
        Cut("philly 6c71a0, half", "6c71a0", 1 / 2, 4),
        Cut("philly 11cb48, half", "11cb48", 1 / 2, 2),
        Cut("philly 6214e9, third", "6214e9", 1 / 3, 2),
        Cut("philly a third of weeks", "narrow", 1 / 3, 8),
        Cut("philly two thirds of weeks", "narrow", 2 / 3, 8),
    ),
)
HELD_OUT_AGAIN = Set(
    "held-out-again",
    401,
    0.86,
    (
        Cut("philly b436b2, two thirds", "b436b2", 2 / 3, 8),
        Cut("philly 6c71a0, two thirds", "6c71a0", 2 / 3, 8),
        Cut("philly 6c71a0, later", "6c71a0", 4 / 5, 4),
        Cut("philly 11cb48, two thirds", "11cb48", 2 / 3, 2),
        Cut("philly 6214e9, fifth", "6214e9", 1 / 5, 2),
        Cut("philly 0e4a51, later", "0e4a51", 0.558, 4),
        Cut("philly a sixth of weeks", "narrow", 1 / 6, 8),
        Cut("philly weeks after the half", "narrow", 3 / 5, 8),
    ),
)
SETS = {chosen.name: chosen for chosen in (FIRST, SECOND, HELD_OUT, THIRD, HELD_OUT_AGAIN)}
_WIDE_TEAMS = {"ee9e8c", "7f04ca", "2869ce", "e13805"}


def histories(folder: Path | None, count: int, which: Set = FIRST) -> list[History]:
    """Return the histories of a set with at most `count` jobs each; without a folder, only those that are made here."""
    drawn = []
    for seed, (name, (make_jobs, nodes)) in enumerate(MADE.items(), which.first_seed):
        drawn.append(History(name, make_jobs(count, random.Random(seed)), nodes))
    if folder is None:
        return drawn
    jobs = philly.load(folder / "philly.csv.gz").jobs
    narrow = [job for job in jobs if job.num_gpus <= 32]
    groups = {"wide": [job for job in jobs if job.team in _WIDE_TEAMS], "narrow": narrow}
    for job in jobs:
        groups.setdefault(job.team, []).append(job)
    cuts = [History(cut.name, _part(groups[cut.of], cut.start, count), cut.num_nodes) for cut in which.cuts]
    pods = openb.load(folder / "alibaba2023_openb_pod_list_default.csv.gz").jobs
    pods = tuple(msgspec.structs.replace(job, gpu_types=()) for job in pods)
    cuts.append(History("philly all, sampled", _sample(narrow, which.sample_from, count), 6))
    cuts.append(History("openb pods", _sample(pods, which.sample_from, count), 1))
    return cuts + drawn


def _part(jobs: Sequence[ClusterJob], start: float, count: int) -> list[ClusterJob]:
    if start < 0:
        return list(jobs[-count:])
    first = int(len(jobs) * start)
    return list(jobs[first : first + count])


def _sample(jobs: Sequence[ClusterJob], start: float, count: int) -> list[ClusterJob]:
    every = max(1, len(jobs) // count)
    return list(jobs[int(every * start) :: every])


# Synthetic histories: each name says which property of a real cluster it imitates.


def job_of(submit_s: float, gpus: int, duration_s: float, user: str, team: str = "t") -> ClusterJob:
    return ClusterJob(submit_s=submit_s, num_gpus=gpus, duration_s=max(10.0, duration_s), user=user, team=team)


def _arrivals(draw: random.Random, count: int, *, by_day: bool = True) -> list[float]:
    """Return times of submission, with bursts, and with three times as many by day as by night."""
    now, times = 0.0, []
    while len(times) < count:
        is_day = (now % DAY) < DAY / 2
        now += draw.expovariate(1.0) * 200.0 * (1.0 if is_day or not by_day else 3.0)
        times += [now] * min(count - len(times), draw.choice([1, 1, 1, 1, 2, 6]))
    return times


def users_who_repeat(count: int, draw: random.Random) -> list[ClusterJob]:
    """Return jobs of 40 users whose own jobs are of a kind: durations can be predicted."""
    users = [(draw.lognormvariate(7.5, 2.0), draw.choice([1, 1, 1, 2, 4, 8, 16])) for _ in range(40)]
    jobs = []
    for submit_s in _arrivals(draw, count):
        number = min(39, int(draw.expovariate(1 / 8)))
        typical_s, gpus = users[number]
        jobs.append(job_of(submit_s, gpus, min(6e5, typical_s * draw.lognormvariate(0, 0.5)), f"u{number}"))
    return jobs


def heavy_tail(count: int, draw: random.Random) -> list[ClusterJob]:
    """Return jobs whose durations are a Pareto distribution that no user or size tells about."""
    return [
        job_of(submit_s, draw.choice([1, 1, 1, 1, 2, 4, 8]), min(1e6, 120 * draw.paretovariate(0.7)), f"u{number % 30}")
        for number, submit_s in enumerate(_arrivals(draw, count))
    ]


def alike(count: int, draw: random.Random) -> list[ClusterJob]:
    """Return jobs of two hours, more or less, on one node each: stopping any of them gains nothing."""
    return [
        job_of(submit_s, draw.choice([4, 8]), 7200 * draw.uniform(0.8, 1.2), f"u{number % 10}")
        for number, submit_s in enumerate(_arrivals(draw, count))
    ]


def exponential(count: int, draw: random.Random) -> list[ClusterJob]:
    """Return jobs without memory: how long one ran says nothing about how long it has to go."""
    return [
        job_of(submit_s, draw.choice([1, 2, 4, 8, 8, 16]), draw.expovariate(1 / (4 * HOUR)), f"u{number % 10}")
        for number, submit_s in enumerate(_arrivals(draw, count, by_day=False))
    ]


def tries_and_trainings(count: int, draw: random.Random) -> list[ClusterJob]:
    """Return many tries of minutes and few wide trainings of days, by the same users."""
    jobs = []
    for number, submit_s in enumerate(_arrivals(draw, count)):
        user = f"u{number % 12}"
        if draw.random() < 0.06:
            jobs.append(job_of(submit_s, draw.choice([8, 16, 32]), draw.uniform(12, 96) * HOUR, user))
        else:
            jobs.append(job_of(submit_s, draw.choice([1, 1, 2, 4, 8]), draw.lognormvariate(6, 1.2), user))
    return jobs


MADE: dict[str, tuple[Callable[[int, random.Random], list[ClusterJob]], int]] = {
    "users who repeat": (users_who_repeat, 8),
    "heavy tail": (heavy_tail, 6),
    "alike": (alike, 8),
    "exponential": (exponential, 8),
    "tries and trainings": (tries_and_trainings, 12),
}
