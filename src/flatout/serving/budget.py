"""How many more trials of a server the budget allows, in time and in number.

In: the trials so far, what was spent. Out: whether one more fits, and how many. It decides nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from flatout.records.serving import ServerTrial, TuningEndedBy

_UNLIMITED = 1_000_000


class TrialBudget:
    """The time and the number of trials that are left."""

    def __init__(
        self,
        budget_s: float,
        max_trials: int | None,
        *,
        trials: Sequence[ServerTrial],
        now_s: Callable[[], float],
    ) -> None:
        """`trials` is the list to which each trial is added as it ends."""
        self._budget_s, self._max_trials = budget_s, max_trials
        self._trials = trials
        self._now_s = now_s
        self._began_s = now_s()
        self.recorded_s = 0.0  # that trials of an earlier run of this tuning took

    def ended_by(self, arm: str) -> TuningEndedBy | None:
        """Return what forbids one more trial of the arm: it takes as long as its own did, or as all did on average."""
        if self._max_trials is not None and len(self._trials) >= self._max_trials:
            return "trials"
        own_s = [trial.took_s for trial in self._trials if trial.arm == arm]
        expected_s = fmean(own_s) if own_s else self._mean_s()
        return "budget" if expected_s > self._left_s() else None

    def affordable(self) -> int:
        """Return how many more trials fit, if each takes as long as they took on average."""
        mean_s = self._mean_s()
        by_time = int(self._left_s() / mean_s) if mean_s > 0 else _UNLIMITED
        by_number = _UNLIMITED if self._max_trials is None else self._max_trials - len(self._trials)
        return max(min(by_time, by_number), 0)

    def _mean_s(self) -> float:
        return fmean(trial.took_s for trial in self._trials) if self._trials else 0.0

    def _left_s(self) -> float:
        return self._budget_s - (self._now_s() - self._began_s) - self.recorded_s
