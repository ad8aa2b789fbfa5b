"""Decide when the warm-up is over, by a rule on the step times so far. This module does not use torch.

In: the time of each step. Out: whether steps may be measured now. They can be measured after eleven steps and one
second (or fifty steps) if the median of the last five step times is within 10 % of the median of the previous five.
The workers of a loader that limits the training deliver their batches in a burst, so a step that waits is followed by
short ones; of such steps, the means of the last four, six or eight are compared with those of as many before. Longer
steps need fewer: four seconds, but at least four steps, of which the last two are compared with the two before.
If step times never become stable, the warm-up ends after a hundred steps and half a minute, or after two minutes. In a
trial it also ends once steps are hopelessly slow, so that the trial is abandoned. While a loader's workers have batches
ready that they made during the first steps, and fewer after each step, the warm-up continues.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from statistics import fmean, median, median_low

from flatout.inside.protocol import NUM_STABLE_WARMUP_STEPS
from flatout.inside.recording.step_detector import StepSource

_HALF = NUM_STABLE_WARMUP_STEPS
_MAX_DIFFERENCE = 0.1
_MIN_S, _MIN_STEPS_WITHOUT_TIME = 1.0, 50
_MAX_STEPS, _MAX_S, _LONGEST_S, _FEWEST_STEPS = 100, 30.0, 120.0, 3

# DistributedDataParallel times its first ten iterations itself, and waits for the GPU in each. The step after them is
# short, because the host gets ahead of the GPU again, so it also counts as warm-up. The waits are of milliseconds, and
# do not matter where steps take a good part of a second.
_DDP_STEPS = 11
_LONG_S, _FEWEST_LONG_STEPS = 4.0, 4
_CYCLES, _CYCLE_SPREAD = (
    (4, 6, 8),
    1.1,
)  # steps that hold whole bursts of 2, 3, 4, 6 or 8 workers; longest over shortest
_HALF_OF_FEW = 2  # number of steps that are compared with as many before, if there are fewer than ten

_DRAINED_BATCHES = 2  # fewer batches ready than a few steps before; one fewer is chance

HOPELESS_STEPS, HOPELESS_FACTOR = 4, 3.0  # steps in a row, and how many times as long as a trial allows

# Steps that are not optimizer steps can turn out to be parts of an optimizer step (an evaluation before the training,
# gradients accumulated over many batches), so more of them are required.
MIN_STEPS = {StepSource.OPTIMIZER: _DDP_STEPS, StepSource.BATCH: 20, StepSource.BACKWARD: 64, StepSource.FORWARD: 20}


class WarmupDetector:
    """Takes one step time after another and detects the end of the warm-up; a given `warmup` replaces the rule."""

    def __init__(self, *, warmup: int | None = None) -> None:
        self.num_steps = 0
        self._warmup = warmup
        self._elapsed_s = 0.0
        self._last: deque[float] = deque(maxlen=2 * max(_CYCLES))
        self._ready: deque[int | None] = deque(maxlen=_HALF)

    def add_ready(self, num_ready: int | None) -> None:
        """Take how many batches a loader has ready after the last step; None: unknown."""
        self._ready.append(num_ready)

    def add(self, step_s: float) -> None:
        self.num_steps += 1
        self._elapsed_s += step_s
        self._last.append(step_s)

    @property
    def step_s(self) -> float:
        """Return the median time of the last steps; 0 before the first step."""
        return median(self.last_steps_s(_HALF)) if self._last else 0.0

    @property
    def mean_s(self) -> float:
        """Return the mean time of the last steps without the longest, a boundary perhaps; 0 before the first step."""
        last = sorted(self.last_steps_s(2 * _HALF))
        return fmean(last[:-1] or last) if last else 0.0

    @property
    def num_stable(self) -> int:
        """Return how many steps at the end of the warm-up are compared with as many before."""
        return self._stable_cycle() or self._half()

    def is_over(self, source: StepSource, *, is_training: bool) -> bool:
        if source is StepSource.BATCH and is_training:
            fewest = MIN_STEPS[StepSource.BACKWARD]
        else:
            fewest = MIN_STEPS[source]
        if self._warmup is not None:
            if source is StepSource.OPTIMIZER:
                return self.num_steps >= self._warmup
            # Passes before the first optimizer step are not steps: a plan based on them would differ between ranks.
            return self.num_steps >= max(self._warmup, fewest)
        if self._elapsed_s >= _LONGEST_S and self.num_steps >= _FEWEST_STEPS:
            return True
        if source is StepSource.OPTIMIZER:
            fewest = self._fewest_steps()
        if self.num_steps < fewest:
            return False
        if self.num_steps >= _MAX_STEPS and self._elapsed_s >= _MAX_S:
            return True
        is_long_enough = self._elapsed_s >= _MIN_S or self.num_steps >= _MIN_STEPS_WITHOUT_TIME
        return is_long_enough and self._is_stable() and not self._is_draining()

    def _is_draining(self) -> bool:
        """Whether steps are fast only because a loader made batches ahead, and will run out of them."""
        known = [num_ready for num_ready in self._ready if num_ready is not None]
        return len(known) > 1 and known[-1] > 0 and known[0] - known[-1] >= _DRAINED_BATCHES

    def is_hopeless(self, abandon_step_s: float) -> bool:
        """Whether the last steps are so much slower than a trial allows that no warm-up explains it."""
        last = self.last_steps_s(HOPELESS_STEPS)
        return len(last) == HOPELESS_STEPS and min(last) > HOPELESS_FACTOR * abandon_step_s

    def last_steps_s(self, num_steps: int) -> list[float]:
        return list(self._last)[-num_steps:]

    def _fewest_steps(self) -> int:
        """Return how many steps of an optimizer a warm-up has at least, given how long they take."""
        step_s = self.step_s
        num_long = ceil(_LONG_S / step_s) if step_s > 0 else _DDP_STEPS
        return max(min(num_long, _DDP_STEPS), _FEWEST_LONG_STEPS)

    def _half(self) -> int:
        return _HALF if self.num_steps >= 2 * _HALF else _HALF_OF_FEW

    def _is_stable(self) -> bool:
        half = self._half()
        times = self.last_steps_s(2 * half)
        return _are_alike(median(times[:half]), median(times[half:])) or self._stable_cycle() is not None

    def _stable_cycle(self) -> int | None:
        """Return how many steps take as long as those before them in the mean, if both contain short and long ones."""
        for num_steps in _CYCLES:
            times = self.last_steps_s(2 * num_steps)
            before, after = times[:num_steps], times[num_steps:]
            has_bursts = len(after) == num_steps and _has_bursts(before) and _has_bursts(after)
            if has_bursts and _are_alike(fmean(before), fmean(after)):
                return num_steps
        return None


def _has_bursts(times: list[float]) -> bool:
    """Whether the longest step is much longer than half of the steps or more."""
    return median_low(times) * _CYCLE_SPREAD <= max(times)


def _are_alike(before: float, after: float) -> bool:
    return abs(after - before) <= _MAX_DIFFERENCE * max(before, after)
