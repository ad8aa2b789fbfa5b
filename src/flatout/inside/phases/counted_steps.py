"""Decide when a trial has counted enough steps. This module does not use torch.

In: the time of one counted step after another, and the rule. Out: a reason to stop, or None. The mean step is known
precisely enough when its standard error is at most the share of it that the rule asks for. Consecutive steps are not
independent, so the error is that of the means of 8 to 15 batches of consecutive steps (Law and Kelton's batch means): a
batch grows as the trial does, and holds whole periods in the end. The error is also computed from batches of twice the
size, and the larger of both counts, because slow changes make long batches differ more than short ones would.
"""

from __future__ import annotations

from bisect import insort
from math import ceil, inf, sqrt

from flatout.inside.protocol import StopReason
from flatout.inside.settings import StopRule

_MAX_BATCHES = 16  # at this number, the batches are merged in pairs
MIN_BATCHES = 4  # fewer means do not show their spread
LONGEST_SHARE = 0.05  # share of the steps, at least one, whose time does not count towards `min_s`: the longest
LONG_FACTOR = 1.5  # a step longer than this many medians can be a boundary
SURE = 3.0  # standard errors between a mean and a limit that it has surely passed
MIN_SURE_STEPS = 4  # steps needed to be sure

# Student's t over the normal distribution's value, both at 97.5 %, by number of batches: of few means, the spread is
# easily underestimated.
_FOR_FEW = {4: 1.62, 5: 1.42, 6: 1.31, 7: 1.25, 8: 1.21, 9: 1.18, 10: 1.15, 11: 1.14, 12: 1.12, 13: 1.11, 14: 1.10}
_FOR_MORE = 1.09


class BatchMeans:
    """The means of batches of consecutive steps, of which there are never more than 15."""

    def __init__(self) -> None:
        self.means: list[float] = []
        self._size = 1
        self._sum = 0.0
        self._num_in_batch = 0

    def add(self, step_s: float) -> None:
        self._sum += step_s
        self._num_in_batch += 1
        if self._num_in_batch < self._size:
            return
        self.means.append(self._sum / self._size)
        self._sum, self._num_in_batch = 0.0, 0
        if len(self.means) == _MAX_BATCHES:
            self.means = _in_pairs(self.means)
            self._size *= 2

    @property
    def has_open_batch(self) -> bool:
        """Whether steps were added that are in no mean yet."""
        return self._num_in_batch > 0

    def standard_error(self) -> float:
        """Return the standard error of the mean step; infinite if there are too few batches."""
        pairs = _in_pairs(self.means)
        errors = [_error(means) for means in (self.means, pairs) if len(means) >= MIN_BATCHES]
        return max(errors, default=inf)


def _in_pairs(means: list[float]) -> list[float]:
    return [(first + second) / 2 for first, second in zip(means[::2], means[1::2], strict=False)]


def _error(means: list[float]) -> float:
    mean = sum(means) / len(means)
    variance = sum((value - mean) ** 2 for value in means) / (len(means) - 1)
    return _FOR_FEW.get(len(means), _FOR_MORE) * sqrt(variance / len(means))


class CountedSteps:
    """The counted steps of a trial so far."""

    def __init__(self, rule: StopRule) -> None:
        self.num_steps = 0
        self._rule = rule
        self._total_s = 0.0
        self._num_boundaries = 0
        self._sorted: list[float] = []
        self._batches = BatchMeans()

    def add(self, step_s: float) -> None:
        self.num_steps += 1
        self._total_s += step_s
        insort(self._sorted, step_s)
        if not self._is_boundary(step_s):
            self._batches.add(step_s)

    def _is_boundary(self, step_s: float) -> bool:
        """Whether a step is long because of a boundary: a job with the rule's period has few of them."""
        if self._rule.period is None or step_s <= LONG_FACTOR * self.median_s:
            return False
        self._num_boundaries += 1
        return self._num_boundaries <= ceil(self.num_steps / self._rule.period) + 1

    def reason_to_stop(self, num_ahead: int = 0) -> str | None:
        """Return why the trial can stop after `num_ahead` more steps, which are assumed to be like those so far."""
        if not self.num_steps:
            return None
        rule = self._rule
        num_steps = self.num_steps + num_ahead
        growth = num_steps / self.num_steps
        is_long_enough = num_steps >= rule.min_steps
        # While a batch is open, the spread does not show yet what its steps took.
        if not self._batches.has_open_batch:
            if self._is_surely_above(rule.abandon_step_s):
                return StopReason.ABANDONED
            if is_long_enough and self._is_enough(growth):
                return StopReason.ENOUGH
        is_most_s = rule.max_s is not None and self._total_s * growth >= rule.max_s
        if num_steps >= rule.max_steps or (is_long_enough and is_most_s):
            return StopReason.MAX
        return None

    def _is_enough(self, growth: float) -> bool:
        """Whether enough seconds are counted and the mean is precise enough once there are `growth` times the steps."""
        if self._without_longest_s() * growth < self._rule.min_s:
            return False
        error = self._batches.standard_error() / sqrt(growth)
        by_time = self._rule.error_per_root_s * sqrt(self._total_s * growth)
        wanted = max(self._rule.relative_error, by_time)
        is_precise = wanted > 0 and error <= wanted * self.mean_s
        return is_precise or self._is_surely_below(self._rule.accept_step_s)

    @property
    def mean_s(self) -> float:
        return self._total_s / self.num_steps

    @property
    def median_s(self) -> float:
        return self._sorted[(self.num_steps - 1) // 2]

    def _without_longest_s(self) -> float:
        """Return the seconds of all steps but the longest: one evaluation does not make a trial long enough."""
        num_longest = ceil(LONGEST_SHARE * self.num_steps)
        return sum(self._sorted[:-num_longest])

    def _is_surely_above(self, limit_s: float | None) -> bool:
        """Whether the mean step is longer than the limit, and not because of a few long steps."""
        if limit_s is None or self.num_steps < MIN_SURE_STEPS:
            return False
        return self.median_s > limit_s and self.mean_s - SURE * self._batches.standard_error() > limit_s

    def _is_surely_below(self, limit_s: float | None) -> bool:
        if limit_s is None or self.num_steps < MIN_SURE_STEPS:
            return False
        return self.mean_s + SURE * self._batches.standard_error() < limit_s
