"""Find the period at which steps stall, from step times as they are recorded. This module does not use torch.

In: the times of ordinary steps. Out: the number of the next step that is due to stall. A step is long if it takes at
least twice as long as the median of the last steps. Three long steps whose distances agree show a period; if a stall
lasts into the next step, its first step counts. Shorter stalls than a twentieth of all time are not worth a trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

LONG = 2.0  # as a multiple of the median
MIN_PERIOD = 5  # steps
MAX_DEVIATION = 1  # steps by which two distances may differ
MIN_SHARE = 0.05  # share of the time between two stalls that the stall takes
MIN_SHARE_OF_LONGEST = 0.2  # of the longest of the last long steps: steps that vary by chance are far shorter
_NUM_STALLS = 3
_NUM_STEPS = 50  # steps of the median
_MIN_STEPS = 10
_NUM_LONG = 32


class StallPeriod(NamedTuple):
    last: int  # number of the last step that stalled
    steps: int  # from stall to stall
    stall_s: float  # time of the last stall, beyond an ordinary step
    step_s: float  # median step

    def next_from(self, earliest: int) -> int:
        """Return the first step that is due to stall, at `earliest` or later."""
        num_periods = max(-(-(earliest - self.last) // self.steps), 1)
        return self.last + num_periods * self.steps


class StallWatch:
    """Takes the times of ordinary steps, in their order, and detects a period of long steps."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_NUM_STEPS)
        self._long: deque[tuple[int, float]] = deque(maxlen=_NUM_LONG)  # number, and time beyond the median

    def add(self, first: int, times_s: Sequence[float]) -> None:
        """Take the times of consecutive steps, of which the first has number `first`."""
        if len(self._times) >= _MIN_STEPS:
            step_s = median(self._times)
            if max(times_s) >= LONG * step_s:
                long_steps = ((number, time_s) for number, time_s in enumerate(times_s, first))
                self._long += [(number, time_s - step_s) for number, time_s in long_steps if time_s >= LONG * step_s]
        self._times.extend(times_s[-_NUM_STEPS:])

    def period(self) -> StallPeriod | None:
        """Return the period at which steps stall; None: they do not, or not regularly."""
        stalls = self._stalls()
        if len(stalls) < _NUM_STALLS:
            return None
        (first, _), (second, _), (third, stall_s) = stalls[-_NUM_STALLS:]
        distances = (second - first, third - second)
        if abs(distances[0] - distances[1]) > MAX_DEVIATION or min(distances) < MIN_PERIOD:
            return None
        step_s = median(self._times)
        if stall_s < MIN_SHARE * (stall_s + distances[1] * step_s):
            return None
        return StallPeriod(third, round((third - first) / 2), stall_s, step_s)

    def _stalls(self) -> list[tuple[int, float]]:
        """Return the first step and the time of each stall: long steps, without those far below the longest."""
        longest_s = max((excess_s for _, excess_s in self._long), default=0.0)
        stalls: list[tuple[int, float]] = []
        previous = -2
        for number, excess_s in self._long:
            if excess_s < MIN_SHARE_OF_LONGEST * longest_s:
                continue
            if number == previous + 1:
                start, so_far_s = stalls.pop()
                stalls.append((start, so_far_s + excess_s))
            else:
                stalls.append((number, excess_s))
            previous = number
        return stalls
