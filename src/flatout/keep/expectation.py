"""Compare the first steps of a running job with what its tuning measured.

In: heartbeats, again and again, and a `StepExpectation`. Out: `ObservedSteps`, once. Steps are measured in windows, and
their median is taken, so that an evaluation or a checkpoint in a few windows does not decide. It judges speed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from flatout.keep.heartbeats import HeartbeatSample
from flatout.records.expectation import ExpectationOutcome, ObservedSteps, StepExpectation

WARMUP_STEPS = 20
NUM_WINDOWS = 10
LEAST_WINDOW_STEPS, LEAST_WINDOW_S = 5, 1.0
_MEDIAN_TO_MEAN_SD = 1.2533  # standard error of a median, relative to that of a mean
_MAD_TO_SD = 1.4826
_T_9 = 2.262  # 97.5 % of Student's distribution with nine degrees of freedom


class ExpectationWatch:
    def __init__(self, expectation: StepExpectation) -> None:
        self._expectation = expectation
        self._process = ""
        self._last: tuple[int, float] | None = None  # steps done, and when the last of them ended
        self._first_step = 0
        self._windows: list[float] = []
        self.is_done = False

    def look(self, ranks: Sequence[HeartbeatSample]) -> ObservedSteps | None:
        """Follow the first rank. Return the comparison once enough of its steps were seen, else None."""
        if self.is_done or not ranks:
            return None
        rank = ranks[0]
        if rank.name != self._process:  # a new attempt begins again
            self._process, self._last, self._windows = rank.name, None, []
        if rank.num_steps < WARMUP_STEPS or rank.last_step_end_s is None:
            return None
        now = rank.num_steps, rank.last_step_end_s
        if self._last is None:
            self._last, self._first_step = now, rank.num_steps
            return None
        num_steps, duration_s = now[0] - self._last[0], now[1] - self._last[1]
        if num_steps < LEAST_WINDOW_STEPS or duration_s < LEAST_WINDOW_S:
            return None
        self._windows.append(duration_s / num_steps)
        self._last = now
        if len(self._windows) < NUM_WINDOWS:
            return None
        self.is_done = True
        return observed(self._windows, self._expectation, num_steps=now[0] - self._first_step)


def observed(windows: Sequence[float], expectation: StepExpectation, *, num_steps: int) -> ObservedSteps:
    """Judge the mean step times of `NUM_WINDOWS` windows."""
    step_s = median(windows)
    sd_s = median(abs(window - step_s) for window in windows) * _MAD_TO_SD
    reach_s = _T_9 * _MEDIAN_TO_MEAN_SD * sd_s / len(windows) ** 0.5
    low_s = step_s - reach_s
    outcome: ExpectationOutcome = "as_tuned"
    if low_s > max(expectation.without_s, expectation.high_s):
        outcome = "regression"
    elif low_s > expectation.high_s:
        outcome = "not_as_tuned"
    return ObservedSteps(outcome=outcome, step_s=step_s, low_s=low_s, high_s=step_s + reach_s, num_steps=num_steps)
