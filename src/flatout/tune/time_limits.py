"""Follow the budget of one tuning, and say how long each of its runs may take.

In: when the tuning began, and how long its trials took. Out: limits in seconds, from the start of a run.
"""

from __future__ import annotations

import time

from flatout.launch import Launcher

MAX_TRIAL_S = 1800.0
_MIN_TRIAL_S = 30.0
_STOP_GRACE_S = 60.0  # time beyond the job's own limit before it is ended from outside
_LAST_GRACE_S = 10.0  # the same at the end of the budget


class TimeLimits:
    """The time of one tuning, which begins now. Time that runs wait in a queue is not counted."""

    def __init__(self, budget_s: float, launcher: Launcher) -> None:
        self.usual_s: float | None = None  # duration of a baseline trial
        self.resumed_s = 0.0  # duration of the trials and profiles taken from the journal
        self._usual_steps = 0  # of that trial
        self._budget_s = budget_s
        self._launcher = launcher
        self._began = time.monotonic()

    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def spent_s(self) -> float:
        return self.elapsed_s() - self._launcher.waited_s + self.resumed_s

    def follow(self, took_s: float, num_steps: int) -> None:
        """Take the next limits from a trial of this duration and number of steps."""
        self.usual_s, self._usual_steps = took_s, num_steps

    def of_trial_s(self, num_steps: int, end_s: float) -> float:
        """Return the time limit of a trial: one that takes five times as long as the baseline is not better.

        A trial of more steps than the baseline's has more time. The job is asked to stop so early that it has ended
        when the budget is used up; `end_s` is how long the trials take from their last step to their end.
        """
        times = max(num_steps / self._usual_steps, 1.0) if self._usual_steps else 1.0
        left_s = self._left_s() - end_s
        return max(min(self._usual_limit_s(times), left_s), _MIN_TRIAL_S)

    def of_profile_s(self) -> float:
        """Return when a profile is ended: it stops itself once it is traced, and has what is left of the budget."""
        return max(min(self._usual_limit_s(), self._left_s()), _MIN_TRIAL_S)

    def ended_after_s(self, limit_s: float) -> float:
        """Return when a job that is to stop itself at `limit_s` is ended from outside."""
        return min(limit_s + _STOP_GRACE_S, max(limit_s, self._left_s()) + _LAST_GRACE_S)

    def _usual_limit_s(self, times: float = 1.0) -> float:
        if self.usual_s is None:
            return MAX_TRIAL_S
        return min(max(5 * self.usual_s * times, 60.0), MAX_TRIAL_S)

    def _left_s(self) -> float:
        return self._budget_s - self.spent_s()
