"""How soon a job ends that has run for some time: from similar jobs that ended, and from those that have not.

In: jobs as they start and end, and how long each has run. Out: the reciprocal Gittins index of a job, in seconds.

A hazard is the share of the jobs that reach a half octave of running time and end within it. Jobs that have not ended
count among those that reached it, as Kaplan and Meier (1958) count them: without them the jobs that take days are not
seen until the first of them ends. The groups of a job go from the jobs of its user, team and size to all jobs. In each
group the hazards of the next one count as `PARENT_JOBS` jobs, which decide until there is evidence in the group itself.
For all jobs, `PARENT_JOBS` of a Pareto distribution take that place, by which a job is expected to run for about as
long again as it has. So an index is never decided by a single job that ended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from flatout.schedule.durations import NUM_BUCKETS, bucket_of, edge, middle
from flatout.schedule.jobs import HOUR, ClusterJob

PARENT_JOBS = 3.0
_PARETO_HAZARD = 1 - 2**-0.5  # half of the jobs that reach a time reach twice that time
_UNKNOWN = np.full(NUM_BUCKETS, _PARETO_HAZARD)
_GROWTH = 1.1  # of the number of ended jobs, after which hazards are computed again
_LONGEST_S = HOUR / 4  # after which they are computed again in any case, because running jobs have become older
_FEW = 1e-3  # share of jobs whose later ends do not change an index

Age = Callable[[int], float]
Floats = npt.NDArray[np.float64]


class _Group:
    """Similar jobs: the half octaves in which they ended, and those that have started and have not ended."""

    __slots__ = ("counted_s", "ended", "num_ended", "num_when_counted", "reached", "unfinished")

    def __init__(self) -> None:
        self.ended = [0] * NUM_BUCKETS
        self.num_ended = 0
        self.unfinished: dict[int, None] = {}
        self.reached: Floats = np.zeros(NUM_BUCKETS)
        self.counted_s = -math.inf
        self.num_when_counted = 0

    def is_outdated(self, now: float) -> bool:
        return now >= self.counted_s + _LONGEST_S or self.num_ended > self.num_when_counted * _GROWTH

    def count(self, now: float, age: Age) -> None:
        """Count the jobs that reached each half octave; one that is in it now counts as a half."""
        present = [0] * NUM_BUCKETS
        for job in self.unfinished:
            present[bucket_of(age(job))] += 1
        in_bucket = np.array(self.ended) + present
        reached = np.cumsum(in_bucket[::-1])[::-1]
        self.reached = reached - np.array(present) / 2
        self.counted_s, self.num_when_counted = now, self.num_ended


def hazards_of(larger: _Group, smaller: _Group | None, expected: Floats) -> Floats:
    """Return the hazards of the jobs of a group that are not in the smaller one, given what was expected of them."""
    ended, reached = np.array(larger.ended), larger.reached
    if smaller is not None:
        ended = ended - smaller.ended
        reached = reached - smaller.reached
    reached = np.maximum(reached, ended)  # the groups are not counted at the same time
    hazards: Floats = (ended + PARENT_JOBS * expected) / (reached + PARENT_JOBS)
    return hazards


class _Kind:
    """Jobs with the same user, team and size: their groups, the smallest first, and their indices if computed."""

    __slots__ = ("computed_s", "groups", "hazards", "indices", "num_when_computed")

    def __init__(self, groups: Sequence[_Group]) -> None:
        self.groups = groups
        self.hazards: list[float] = []
        self.indices: dict[int, float] = {}
        self.computed_s = -math.inf
        self.num_when_computed = 0

    def is_outdated(self, now: float) -> bool:
        own = self.groups[0]
        return now >= self.computed_s + _LONGEST_S or own.num_ended > self.num_when_computed * _GROWTH

    def compute(self, now: float, age: Age) -> None:
        for group in self.groups:
            if group.is_outdated(now):
                group.count(now, age)
        hazards = _UNKNOWN
        for number in range(len(self.groups) - 1, -1, -1):
            smaller = self.groups[number - 1] if number else None
            hazards = hazards_of(self.groups[number], smaller, hazards)
        self.hazards, self.indices = hazards.tolist(), {}
        self.computed_s, self.num_when_computed = now, self.groups[0].num_ended


class Hazards:
    """The evidence of one replay; `age` returns the seconds for which a job has held GPUs."""

    def __init__(self, jobs: Sequence[ClusterJob], age: Age) -> None:
        groups: dict[tuple[object, ...], _Group] = {}
        kinds: dict[tuple[object, ...], _Kind] = {}
        self._age = age
        self._kind_of: list[_Kind] = []
        for job in jobs:
            keys = _keys_of(job)
            kind = kinds.get(keys[0])
            if kind is None:
                kind = kinds[keys[0]] = _Kind([groups.setdefault(key, _Group()) for key in keys])
            self._kind_of.append(kind)

    def started(self, job: int) -> None:
        for group in self._kind_of[job].groups:
            group.unfinished[job] = None

    def ended(self, job: int, ran_s: float) -> None:
        bucket = bucket_of(ran_s)
        for group in self._kind_of[job].groups:
            group.unfinished.pop(job, None)
            group.ended[bucket] += 1
            group.num_ended += 1

    def index(self, job: int, bucket: int, now: float) -> float:
        """Return the reciprocal Gittins index, in seconds, of a similar job that has reached this half octave.

        It is the minimum, over all stopping times, of (expected time used) / (chance of ending by then). Jobs with a
        smaller value are served first. Gittins 1979; for jobs of unknown size Aalto, Ayesta and Righter, Queueing
        Systems 63 (2009).
        """
        kind = self._kind_of[job]
        if kind.is_outdated(now):
            kind.compute(now, self._age)
        index = kind.indices.get(bucket)
        if index is None:
            index = kind.indices[bucket] = reciprocal_index(kind.hazards, bucket)
        return index


def reciprocal_index(hazards: Sequence[float], first: int) -> float:
    """Return the reciprocal Gittins index of a job that has just reached this half octave."""
    least, used_s, share_left = math.inf, 0.0, 1.0
    last_edge_s = edge(first)
    for bucket in range(first, NUM_BUCKETS):
        share_ended = share_left * hazards[bucket]
        share_left -= share_ended
        next_edge_s = edge(bucket + 1)
        used_s += share_ended * (middle(bucket) - last_edge_s) + share_left * (next_edge_s - last_edge_s)
        last_edge_s = next_edge_s
        if share_left < 1:
            least = min(least, used_s / (1 - share_left))
        if share_left < _FEW:
            break
    return max(1.0, least)


def _keys_of(job: ClusterJob) -> tuple[tuple[object, ...], ...]:
    """Return the keys of the groups of a job; each group is within the next."""
    user, team, gpus = job.user, job.team, job.num_gpus
    if not user:
        return ((team, gpus), (team,), ())
    return ((team, user, gpus), (team, user, "all sizes"), (team,), ())
