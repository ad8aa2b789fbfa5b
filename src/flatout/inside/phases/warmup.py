"""When the warm-up is over: a rule on the step times so far. Knows no torch.

Settled: eleven steps and a second (or fifty steps), and the medians of the last five and of the five before them agree
within a tenth. Step times that never settle end the warm-up after a hundred steps and half a minute, or after two
minutes.
"""

from __future__ import annotations

from collections import deque
from statistics import median

from flatout.inside.protocol import NUM_STABLE_WARMUP_STEPS
from flatout.inside.recording.step_detector import StepSource

_HALF = NUM_STABLE_WARMUP_STEPS
_AGREEMENT = 0.1
_MIN_S, _MIN_STEPS_WITHOUT_TIME = 1.0, 50
_MAX_STEPS, _MAX_S, _LONGEST_S, _FEWEST_STEPS = 100, 30.0, 120.0, 3

# DistributedDataParallel times its first ten iterations itself, and waits for the GPU in each. In the step after them
# the host gets ahead of the GPU again, so that it is short: it counts as warm-up, too.
_DDP_STEPS = 11

# Steps that are no optimizer steps may turn out to be a part of one (an evaluation before the training, gradients that
# are accumulated over many batches), so they must have gone on for longer.
MIN_STEPS = {StepSource.OPTIMIZER: _DDP_STEPS, StepSource.BATCH: 20, StepSource.BACKWARD: 64}


class WarmupDetector:
    """Takes one step time after another. `warmup` sets a fixed number of steps instead of the rule."""

    def __init__(self, *, warmup: int | None = None) -> None:
        self.num_steps = 0
        self._warmup = warmup
        self._elapsed_s = 0.0
        self._last: deque[float] = deque(maxlen=2 * _HALF)

    def add(self, step_s: float) -> None:
        self.num_steps += 1
        self._elapsed_s += step_s
        self._last.append(step_s)

    @property
    def step_s(self) -> float:
        """The median of the last steps; 0 before the first."""
        return median(list(self._last)[-_HALF:]) if self._last else 0.0

    def is_settled(self, source: StepSource, *, is_training: bool) -> bool:
        fewest = MIN_STEPS[StepSource.BACKWARD if source is StepSource.BATCH and is_training else source]
        if self._warmup is not None:
            # Passes before the first optimizer step are no steps: a plan made of them would differ between ranks.
            return self.num_steps >= (self._warmup if source is StepSource.OPTIMIZER else max(self._warmup, fewest))
        if self._elapsed_s >= _LONGEST_S and self.num_steps >= _FEWEST_STEPS:
            return True
        if self.num_steps < fewest:
            return False
        if self.num_steps >= _MAX_STEPS and self._elapsed_s >= _MAX_S:
            return True
        if self._elapsed_s < _MIN_S and self.num_steps < _MIN_STEPS_WITHOUT_TIME:
            return False
        times = list(self._last)
        before, after = median(times[:_HALF]), median(times[_HALF:])
        return abs(after - before) <= _AGREEMENT * max(before, after)
