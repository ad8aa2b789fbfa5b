"""Decide when a checkpoint is due by the clock, as a step number, so that all ranks save at the same step.

The first rank's clock counts. It predicts the step at which the interval will be over, and is asked again halfway
there, so that steps that become slower or faster change little. This takes about ten short messages per interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CheckpointTimer:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._saved_at = self._asked_at = clock()
        self._asked_step = 0
        self._ask: int | None = None
        self._due: int | None = None

    def begin(self, step: int) -> None:
        self._saved_at = self._asked_at = self._clock()
        self._asked_step, self._ask, self._due = step, step + 1, None

    def is_asking(self, step: int) -> bool:
        """Whether the ranks exchange messages after this step; the answer is the same on all ranks."""
        if self._ask is None:
            self.begin(step)
        return self._ask is not None and step >= self._ask

    def is_due(self, step: int) -> bool:
        return self._due is not None and step >= self._due

    def propose(self, step: int, every_s: float, *, is_saved: bool) -> list[int]:
        """Return the step of the next checkpoint and when to ask again; the first rank's proposal holds for all."""
        now = self._clock()
        num_steps = max(step - self._asked_step, 1)
        step_s = max((now - self._asked_at) / num_steps, 1e-9)
        if is_saved:
            self._saved_at = now
        left_s = every_s - (now - self._saved_at)
        ahead = max(round(min(left_s / step_s, 1e9)), 1)
        # The first steps are few and slow (compilation, caches), so ask again soon.
        return [step + ahead, step + max(min(ahead // 2, 4 * num_steps), 1)]

    def tell(self, step: int, proposed: list[int]) -> None:
        self._due, self._ask = proposed
        self._asked_at, self._asked_step = self._clock(), step
