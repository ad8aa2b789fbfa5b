"""How soon a job ends that has run for some time: from similar jobs that ended, and from those that have not.

In: jobs as they start and end, and how long each has run. Out: the reciprocal Gittins index of a job, in seconds, and
its level: the octave of the index times a power of the job's GPUs. The index of a job that waits counts what it costs
to start it: otherwise a chance of one in fifty to end within half a minute would be worth stopping others for.

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
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from flatout.schedule.durations import NUM_BUCKETS, bucket_of, edge, middle
from flatout.schedule.jobs import HOUR, ClusterJob

SHORTEST = bucket_of(64.0)  # no index is asked for before; jobs that have run for less are all in one
PARENT_JOBS = 3.0
_PARETO_HAZARD = 1 - 2**-0.5  # half of the jobs that reach a time reach twice that time
_UNKNOWN = np.full(NUM_BUCKETS, _PARETO_HAZARD)
_GROWTH = 1.1  # of the number of ended jobs, after which hazards are computed again
_LONGEST_S = HOUR / 4  # after which they are computed again in any case, because running jobs have become older
_FEW = 1e-3  # share of jobs whose later ends do not change an index
_ROUNDING = 1e-6
_WIDTHS_S = [edge(bucket + 1) - edge(bucket) for bucket in range(NUM_BUCKETS)]
_TO_MIDDLES_S = [middle(bucket) - edge(bucket) for bucket in range(NUM_BUCKETS)]

Age = Callable[[int], float]
Floats = npt.NDArray[np.float64]

# Row `b`: which half octaves a job that ended in `b` has reached, and one that is in `b` now, which counts as a half.
_ENDED = np.tri(NUM_BUCKETS)
_PRESENT = _ENDED - np.eye(NUM_BUCKETS) / 2


class _Group:
    """Similar jobs: in which half octaves they ended, and how many reached each, now and when last counted."""

    __slots__ = ("counted_s", "ended", "num_ended", "num_when_counted", "reached", "reached_now")

    def __init__(self) -> None:
        self.ended: Floats = np.zeros(NUM_BUCKETS)
        self.num_ended = 0
        self.reached_now: Floats = np.zeros(NUM_BUCKETS)
        self.reached: Floats = np.zeros(NUM_BUCKETS)
        self.counted_s = -math.inf
        self.num_when_counted = 0

    def is_outdated(self, now: float) -> bool:
        return now >= self.counted_s + _LONGEST_S or self.num_ended > self.num_when_counted * _GROWTH

    def end(self, bucket: int) -> None:
        self.ended[bucket] += 1
        self.num_ended += 1

    def count(self, now: float) -> None:
        """Take over how many jobs have reached each half octave by now."""
        self.reached = self.reached_now.copy()
        self.counted_s, self.num_when_counted = now, self.num_ended


def hazards_of(larger: _Group, smaller: _Group | None, expected: Floats) -> Floats:
    """Return the hazards of the jobs of a group that are not in the smaller one, given what was expected of them."""
    ended, reached = larger.ended, larger.reached
    if smaller is not None:
        ended = ended - smaller.ended
        reached = reached - smaller.reached
    reached = np.maximum(reached, ended)  # the groups are not counted at the same time
    reached += PARENT_JOBS
    hazards: Floats = expected * PARENT_JOBS
    hazards += ended
    hazards /= reached
    return hazards


class _Kind:
    """Jobs with the same user, team and size: their groups, the smallest first, and their levels if computed."""

    __slots__ = ("groups", "hazards", "levels", "levels_to_start", "outdated_num", "outdated_s", "own", "width")

    def __init__(self, groups: Sequence[_Group], width: float) -> None:
        self.groups, self.own = groups, groups[0]
        self.width = width
        self.hazards: list[float] = []
        self.levels: dict[int, int] = {}
        self.levels_to_start: dict[tuple[int, float], int] = {}
        self.outdated_s = -math.inf
        self.outdated_num = 0.0  # of ended jobs

    def compute(self, now: float) -> None:
        for group in self.groups:
            if group.is_outdated(now):
                group.count(now)
        hazards = _UNKNOWN
        for number in range(len(self.groups) - 1, -1, -1):
            smaller = self.groups[number - 1] if number else None
            hazards = hazards_of(self.groups[number], smaller, hazards)
        self.hazards, self.levels, self.levels_to_start = hazards.tolist(), {}, {}
        self.outdated_s, self.outdated_num = now + _LONGEST_S, self.own.num_ended * _GROWTH

    def level(self, bucket: int) -> int:
        level = self.levels.get(bucket)
        if level is None:
            level = int(math.log2(reciprocal_index(self.hazards, bucket) * self.width))
            self.levels[bucket] = level
        return level

    def level_to_start(self, bucket: int, start_cost_s: float) -> int:
        level = self.levels_to_start.get((bucket, start_cost_s))
        if level is None:
            index = reciprocal_index(self.hazards, bucket, start_cost_s)
            level = int(math.log2(index * self.width))
            self.levels_to_start[bucket, start_cost_s] = level
        return level


class Hazards:
    """The evidence of one replay.

    `age` returns the seconds for which a job has held GPUs; in a second it grows by at most a second. `width_exponent`
    is the power of a job's GPUs in its level.
    """

    def __init__(self, jobs: Sequence[ClusterJob], age: Age, *, width_exponent: float = 0.0) -> None:
        groups: dict[tuple[object, ...], _Group] = {}
        kinds: dict[tuple[object, ...], _Kind] = {}
        self._age = age
        self._kind_of: list[_Kind] = []
        for job in jobs:
            keys = _keys_of(job)
            kind = kinds.get(keys[0])
            if kind is None:
                kind = kinds[keys[0]] = _Kind(
                    [groups.setdefault(key, _Group()) for key in keys], job.num_gpus**width_exponent
                )
            self._kind_of.append(kind)
        self._bucket = [0] * len(jobs)
        self._next_s = [math.inf] * len(jobs)  # the earliest time at which an unfinished job can be in the next bucket
        self._moves: list[tuple[float, int]] = []  # a heap of such times, which may have become later

    def started(self, job: int) -> None:
        if self._next_s[job] < math.inf:
            return
        self._next_s[job] = -math.inf
        heappush(self._moves, (-math.inf, job))
        for group in self._kind_of[job].groups:
            group.reached_now += _PRESENT[0]

    def ended(self, job: int, ran_s: float) -> None:
        bucket = bucket_of(ran_s)
        change = _ENDED[bucket]
        if self._next_s[job] < math.inf:
            change = change - _PRESENT[self._bucket[job]]
            self._next_s[job] = math.inf
        for group in self._kind_of[job].groups:
            group.end(bucket)
            group.reached_now += change

    def bucket(self, job: int, now: float) -> int:
        """Return the half octave that a job has reached by now."""
        if now >= self._next_s[job]:
            self._move(job, now)
        return self._bucket[job]

    def _move(self, job: int, now: float) -> None:
        """Count an unfinished job in the half octave that it has reached by now."""
        age_s, old = self._age(job), self._bucket[job]
        bucket = bucket_of(age_s)
        next_edge_s = edge(max(SHORTEST, bucket + 1))
        self._next_s[job] = now + (next_edge_s - age_s) * (1 - _ROUNDING) - _ROUNDING
        if bucket == old:
            return
        self._bucket[job] = bucket
        change = _PRESENT[bucket] - _PRESENT[old]
        for group in self._kind_of[job].groups:
            group.reached_now += change

    def _move_all(self, now: float) -> None:
        """Count all unfinished jobs in the half octaves that they have reached by now."""
        moves = self._moves
        later = []
        while moves and moves[0][0] <= now:
            _, job = heappop(moves)
            if now >= self._next_s[job]:
                self._move(job, now)
            if self._next_s[job] < math.inf:
                later.append((self._next_s[job], job))
        for move in later:
            heappush(moves, move)

    def index(self, job: int, bucket: int, now: float) -> float:
        """Return the reciprocal Gittins index, in seconds, of a similar job that has reached this half octave.

        It is the minimum, over all stopping times, of (expected time used) / (chance of ending by then). Jobs with a
        smaller value are served first. Gittins 1979; for jobs of unknown size Aalto, Ayesta and Righter, Queueing
        Systems 63 (2009).
        """
        return reciprocal_index(self._kind(job, now).hazards, bucket)

    def level(self, job: int, now: float) -> int:
        """Return the level of a job that runs."""
        if now >= self._next_s[job]:
            self._move(job, now)
        bucket = self._bucket[job]
        if bucket < SHORTEST:
            bucket = SHORTEST
        kind = self._kind_of[job]
        if now >= kind.outdated_s or kind.own.num_ended > kind.outdated_num:
            kind = self._kind(job, now)
        level = kind.levels.get(bucket)
        return kind.level(bucket) if level is None else level

    def level_to_start(self, job: int, now: float, start_cost_s: float) -> int:
        """Return the level of a job that waits, if starting it costs as much as these seconds of its time."""
        bucket = max(SHORTEST, self.bucket(job, now))
        return self._kind(job, now).level_to_start(bucket, start_cost_s)

    def next_level(self, job: int, level: int, buckets: range, now: float) -> int:
        """Return the first of these half octaves in which a similar job has another level, or else their end."""
        level_at = self._kind(job, now).level
        for bucket in buckets:
            if level_at(bucket) != level:
                return bucket
        return buckets.stop

    def _kind(self, job: int, now: float) -> _Kind:
        """Return the jobs like this one, with the hazards that are known by now."""
        kind = self._kind_of[job]
        if now >= kind.outdated_s or kind.own.num_ended > kind.outdated_num:
            self._move_all(now)
            kind.compute(now)
        return kind


def reciprocal_index(hazards: Sequence[float], first: int, start_cost_s: float = 0.0) -> float:
    """Return the reciprocal Gittins index of a job that has just reached this half octave.

    The time until a stop includes what it costs to start the job.

    A job that ends within a half octave takes at least the time to its middle for it, so where that is longer than the
    least value found, no later stopping time has a smaller one.
    """
    least, used_s, share_left = math.inf, start_cost_s, 1.0
    enough_s = math.inf
    for hazard, to_middle_s, width_s in zip(hazards[first:], _TO_MIDDLES_S[first:], _WIDTHS_S[first:], strict=True):
        if to_middle_s > enough_s:
            break
        share_ended = share_left * hazard
        share_left -= share_ended
        used_s += share_ended * to_middle_s + share_left * width_s
        if share_left < 1:
            index = used_s / (1 - share_left)
            if index < least:
                least, enough_s = index, index * (1 + _ROUNDING)
        if share_left < _FEW:
            break
    return max(1.0, least)


def _keys_of(job: ClusterJob) -> tuple[tuple[object, ...], ...]:
    """Return the keys of the groups of a job; each group is within the next."""
    user, team, gpus = job.user, job.team, job.num_gpus
    if not user:
        return ((team, gpus), (team,), ())
    return ((team, user, gpus), (team, user, "all sizes"), (team,), ())
