"""Durations predicted from the history of those who submit, and how wrong that was.

In: jobs as they end. Out: for a new job the expected duration; for a running one what is still to come, given how long
it ran. Histories are histograms in half octaves of seconds, of the most particular of (user and GPUs, user, team and
GPUs, team, GPUs, all) that has at least `LEAST` ended jobs. Jobs that still run are not in it, which makes predictions
short while a history is young.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from flatout.schedule.jobs import ClusterJob

LEAST = 5
NUM_BUCKETS = 56  # 2 ** 28 s
FIRST_GUESS_S = 3600.0
_EDGES: list[float] = [2.0 ** (bucket / 2) for bucket in range(NUM_BUCKETS + 1)]
_MIDDLES: list[float] = [2.0 ** (bucket / 2 + 0.25) for bucket in range(NUM_BUCKETS)]


def bucket_of(duration_s: float) -> int:
    return 0 if duration_s < 1 else min(NUM_BUCKETS - 1, int(2 * math.log2(duration_s)))


def edge(bucket: int) -> float:
    """Where a half octave begins, in seconds."""
    return _EDGES[bucket]


class _History:
    __slots__ = ("counts", "index", "num", "seen", "total")

    def __init__(self) -> None:
        self.counts = [0] * NUM_BUCKETS
        self.num = 0
        self.total = 0.0
        self.seen = 0  # `num` when `index` was made
        self.index: list[float] = []


class Durations:
    """Predictions for the jobs of one replay."""

    def __init__(self, jobs: Sequence[ClusterJob]) -> None:
        self._jobs = jobs
        self._known: dict[tuple[object, ...], _History] = {(): _History()}
        self._keys = [self._keys_of(job) for job in jobs]
        self._errors: list[float] = []
        self._unknown = 0

    @staticmethod
    def _keys_of(job: ClusterJob) -> tuple[tuple[object, ...], ...]:
        user, team, gpus = job.user, job.team, job.num_gpus
        keys: tuple[tuple[object, ...], ...] = (("team", team, gpus), ("team", team), ("gpus", gpus), ())
        return (("user", user, team, gpus), ("user", user), *keys) if user else keys

    def ended(self, job: int, ran_s: float, predicted_s: float | None = None) -> None:
        """A job ended after running for so long; `predicted_s`: what was said of it before."""
        if predicted_s is not None and ran_s > 0:
            self._errors.append(abs(math.log(predicted_s / ran_s)))
        bucket = bucket_of(ran_s)
        for key in self._keys[job]:
            history = self._known.get(key)
            if history is None:
                history = self._known[key] = _History()
            history.counts[bucket] += 1
            history.num += 1
            history.total += ran_s

    def expected(self, job: int) -> float:
        """The geometric middle of what such jobs took: half an octave of their median."""
        history = self._history(job)
        if history is None:
            return FIRST_GUESS_S
        half, seen = history.num / 2, 0
        for bucket, count in enumerate(history.counts):
            seen += count
            if seen >= half:
                return _MIDDLES[bucket]
        raise AssertionError

    def mean(self, job: int) -> float:
        """The mean of what such jobs took."""
        history = self._history(job)
        return FIRST_GUESS_S if history is None else max(1.0, history.total / history.num)

    def quantile(self, job: int, share: float) -> float:
        """What so large a share of such jobs stayed within."""
        history = self._history(job)
        if history is None:
            return FIRST_GUESS_S * 24
        wanted, seen = history.num * share, 0
        for bucket, count in enumerate(history.counts):
            seen += count
            if seen >= wanted:
                return _EDGES[bucket + 1]
        raise AssertionError

    def remaining(self, job: int, ran_s: float) -> float:
        """The mean of what is left of such jobs that ran longer than that; as long again where none did."""
        history = self._history(job)
        if history is None:
            return max(FIRST_GUESS_S, ran_s)
        first = bucket_of(ran_s)
        num = total = 0.0
        for bucket in range(first, NUM_BUCKETS):
            count = history.counts[bucket]
            if count and _EDGES[bucket + 1] > ran_s:
                num += count
                total += count * max(0.0, _MIDDLES[bucket] - ran_s)
        return max(1.0, total / num) if num else max(1.0, ran_s)

    def index(self, job: int, bucket: int) -> float:
        """The Gittins index, inverted, of such a job that has run for that half octave, in seconds: least over all
        times to stop at of (expected time spent) / (chance of ending by then). Smaller is served first.

        Gittins 1979; for jobs of unknown size Aalto, Ayesta and Righter, Queueing Systems 63 (2009).
        """
        history = self._history(job)
        if history is None:
            return max(FIRST_GUESS_S, _EDGES[bucket])
        if history.num > history.seen * 1.1:
            history.index = _indices(history.counts)
            history.seen = history.num
        return history.index[bucket]

    def _history(self, job: int) -> _History | None:
        for key in self._keys[job]:
            history = self._known.get(key)
            if history is not None and history.num >= LEAST:
                return history
        return None

    def error_text(self) -> str:
        """How wrong the predictions were."""
        if not self._errors:
            return "no duration was predicted"
        errors = sorted(self._errors)
        middle, ninth = (math.exp(errors[int(share * (len(errors) - 1))]) for share in (0.5, 0.9))
        return (
            f"durations were predicted from the history of users, teams and sizes: half of {len(errors):,} predictions "
            f"within a factor of {middle:.1f}, nine in ten within {ninth:.0f}"
        )


def _indices(counts: Sequence[int]) -> list[float]:
    """For each half octave the inverted index of a job that has reached it."""
    found = []
    for first in range(NUM_BUCKETS):
        start, alive = _EDGES[first] if first else 0.0, sum(counts[first:])
        if not alive:
            found.append(max(1.0, start))
            continue
        best, spent, ended = math.inf, 0.0, 0
        for stop in range(first, NUM_BUCKETS):
            count = counts[stop]
            if not count:
                continue
            ended += count
            spent += count * (_MIDDLES[stop] - start)
            best = min(best, (spent + (alive - ended) * (_EDGES[stop + 1] - start)) / ended)
        found.append(best)
    return found
