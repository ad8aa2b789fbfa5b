"""Durations predicted from earlier jobs of the same users, and the error of the predictions.

In: jobs as they end. Out: for a new job its expected duration; for a running job its expected remaining time, given how
long it has run. A prediction uses a histogram in half octaves of seconds, for the most specific key of (user and GPUs,
user, team and GPUs, team, GPUs, all) that has at least `LEAST` ended jobs. Running jobs are not included, so
predictions are too short while the history is short; `hazards.py` includes them.
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
    """Return the half octave of a duration."""
    if duration_s < 1:
        return 0
    return min(NUM_BUCKETS - 1, int(2 * math.log2(duration_s)))


def edge(bucket: int) -> float:
    """Return the lower edge of a half octave, in seconds."""
    return _EDGES[bucket]


def middle(bucket: int) -> float:
    """Return the geometric middle of a half octave, in seconds."""
    return _MIDDLES[bucket]


class _Histogram:
    """The durations of ended jobs with the same key."""

    __slots__ = ("counts", "num", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * NUM_BUCKETS
        self.num = 0
        self.total_s = 0.0

    def bucket_of_quantile(self, share: float) -> int:
        """Return the half octave that contains the quantile."""
        wanted, num_so_far = self.num * share, 0
        for bucket, count in enumerate(self.counts):
            num_so_far += count
            if num_so_far >= wanted:
                return bucket
        raise AssertionError


class Durations:
    """Predictions for the jobs of one replay."""

    def __init__(self, jobs: Sequence[ClusterJob]) -> None:
        self._histograms: dict[tuple[object, ...], _Histogram] = {(): _Histogram()}
        self._keys = [keys_of(job) for job in jobs]
        self._errors: list[float] = []

    def ended(self, job: int, ran_s: float, predicted_s: float | None = None) -> None:
        """Add a job that ended after running for `ran_s`; `predicted_s` is the duration predicted beforehand."""
        if predicted_s is not None and ran_s > 0:
            self._errors.append(abs(math.log(predicted_s / ran_s)))
        bucket = bucket_of(ran_s)
        for key in self._keys[job]:
            histogram = self._histograms.get(key)
            if histogram is None:
                histogram = self._histograms[key] = _Histogram()
            histogram.counts[bucket] += 1
            histogram.num += 1
            histogram.total_s += ran_s

    def expected(self, job: int) -> float:
        """Return the typical duration of similar jobs: the geometric middle of the half octave with their median."""
        histogram = self._histogram(job)
        if histogram is None:
            return FIRST_GUESS_S
        return _MIDDLES[histogram.bucket_of_quantile(0.5)]

    def mean(self, job: int) -> float:
        """Return the mean duration of similar jobs."""
        histogram = self._histogram(job)
        if histogram is None:
            return FIRST_GUESS_S
        return max(1.0, histogram.total_s / histogram.num)

    def quantile(self, job: int, share: float) -> float:
        """Return the duration that this share of similar jobs does not exceed."""
        histogram = self._histogram(job)
        if histogram is None:
            return FIRST_GUESS_S * 24
        return _EDGES[histogram.bucket_of_quantile(share) + 1]

    def remaining(self, job: int, ran_s: float) -> float:
        """Return the mean remaining time of similar jobs that ran longer than `ran_s`, or `ran_s` if there are none."""
        histogram = self._histogram(job)
        if histogram is None:
            return max(FIRST_GUESS_S, ran_s)
        num = total_s = 0.0
        for bucket in range(bucket_of(ran_s), NUM_BUCKETS):
            count = histogram.counts[bucket]
            if count and _EDGES[bucket + 1] > ran_s:
                num += count
                total_s += count * max(0.0, _MIDDLES[bucket] - ran_s)
        return max(1.0, total_s / num) if num else max(1.0, ran_s)

    def _histogram(self, job: int) -> _Histogram | None:
        """Return the most specific histogram with enough jobs."""
        for key in self._keys[job]:
            histogram = self._histograms.get(key)
            if histogram is not None and histogram.num >= LEAST:
                return histogram
        return None

    def error_text(self) -> str:
        """Return a sentence about the error of the predictions."""
        if not self._errors:
            return "no duration was predicted"
        errors = sorted(self._errors)
        last = len(errors) - 1
        median_factor = math.exp(errors[int(0.5 * last)])
        p90_factor = math.exp(errors[int(0.9 * last)])
        return (
            "durations were predicted from the history of users, teams and sizes:"
            f" half of {len(errors):,} predictions were within a factor of {median_factor:.1f},"
            f" 90 % within {p90_factor:.0f}"
        )


def keys_of(job: ClusterJob) -> tuple[tuple[object, ...], ...]:
    """Return the keys of the histograms that a job belongs to, the most specific first."""
    user, team, gpus = job.user, job.team, job.num_gpus
    keys: tuple[tuple[object, ...], ...] = (("team", team, gpus), ("team", team), ("gpus", gpus), ())
    if not user:
        return keys
    return (("user", user, team, gpus), ("user", user), *keys)
