"""Find lasting changes in the step time of a job.

In: one step time after the other. Out: shifts, as they begin and end.

Steps are taken in blocks, of which the median counts, so that single slow steps (a checkpoint, a collection of
garbage) do not matter. The sum of what blocks are above the reference, less an allowance, grows during a slowdown and
falls back to 0 otherwise (CUSUM). The allowance is half of the least slowdown worth reporting, in percent of the
step: with an allowance in standard deviations, a slow drift of 1 % per day raises an alarm on most days. Where blocks
differ by more than that, because the machine is busy, the allowance is 1.5 of their standard deviations; what they
differ by is learned again all the time, as a machine can become busy later. A single block raises no alarm.

Source: Page, Continuous inspection schemes (1954); `benchmarks/live_diagnosis.py` compares it with Page-Hinkley's
test and a fixed threshold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import median

import msgspec

BLOCK_STEPS = 20
LEARN_BLOCKS = 15  # blocks from which the reference and its noise are learned
ALLOWANCE = 0.015  # share of the step time
ALLOWANCE_SDS = 1.5  # standard deviations of the blocks, where these are more
ALARM_SDS = 8.0
LEAST_BLOCKS = 2  # blocks above the allowance, the last one among them, before an alarm
NOISE_BLOCKS = 45  # the last blocks of which the noise is learned
SHORT_BLOCKS = 10  # a slowdown that ended within these was noise
RETURN_BLOCKS = 3  # blocks in a row near the reference that end a slowdown
_MAD_TO_SD = 1.4826
_LEAST_SD = 0.002  # share: a series without noise would raise an alarm at any change
_DRIFT = 0.01  # share of the distance by which the reference follows a block


class Shift(msgspec.Struct, kw_only=True):
    """A lasting slowdown of the job."""

    first_step: int
    before_s: float
    after_s: float  # median of the blocks since
    last_step: int | None = None  # None: it continues


class ChangePoints:
    """Follows the step times of one job, as long as its steps do the same work."""

    def __init__(self) -> None:
        self.shift: Shift | None = None  # the slowdown that continues
        self.ended: list[Shift] = []
        self._block: list[float] = []
        self._learned: list[float] = []
        self._reference_s = 0.0
        self._sd = _LEAST_SD
        self._deviations: deque[float] = deque(maxlen=NOISE_BLOCKS)  # shares of the reference
        self._excess = 0.0
        self._excess_from = 0
        self._since: list[float] = []
        self._num_back = 0

    @property
    def is_learning(self) -> bool:
        return not self._reference_s

    @property
    def is_rising(self) -> bool:
        """Whether the last block was above the reference, so that a shift may be about to be found."""
        return self._excess > 0

    def add(self, step: int, duration_s: float) -> Shift | None:
        """Add a step of the job. Return the shift that begins with this block."""
        self._block.append(duration_s)
        if len(self._block) < BLOCK_STEPS:
            return None
        block_s = median(self._block)
        self._block.clear()
        first_step = step - BLOCK_STEPS + 1
        if self.is_learning:
            self._learn(block_s)
            return None
        if self.shift is not None:
            self._follow(self.shift, block_s, step)
            return None
        return self._test(block_s, first_step)

    def _learn(self, block_s: float) -> None:
        self._learned.append(block_s)
        if len(self._learned) < LEARN_BLOCKS:
            return
        self._reference_s = median(self._learned)
        self._learn_noise(self._learned)

    def _learn_noise(self, blocks: Iterable[float]) -> None:
        """Learn the noise from the last blocks that belong to no slowdown."""
        self._deviations.extend(abs(block_s / self._reference_s - 1) for block_s in blocks)
        self._sd = max(_MAD_TO_SD * median(self._deviations), _LEAST_SD)

    def _test(self, block_s: float, first_step: int) -> Shift | None:
        above = block_s / self._reference_s - 1
        if not self._excess:
            self._excess_from, self._since = first_step, []
        allowance = max(ALLOWANCE, ALLOWANCE_SDS * self._sd)
        self._excess = max(self._excess + above - allowance, 0.0)
        self._since.append(block_s)
        if not self._excess:
            self._learn_noise(self._since)
            self._since = []
            self._reference_s += _DRIFT * (block_s - self._reference_s)
            return None
        num_above = sum(block > (1 + allowance) * self._reference_s for block in self._since)
        is_lasting = above > allowance and num_above >= LEAST_BLOCKS
        if self._excess <= ALARM_SDS * self._sd or not is_lasting:
            return None
        self.shift = Shift(first_step=self._excess_from, before_s=self._reference_s, after_s=median(self._since))
        self._excess, self._num_back = 0.0, 0
        return self.shift

    def _follow(self, shift: Shift, block_s: float, step: int) -> None:
        """Follow a slowdown until its blocks are back near the reference."""
        self._since.append(block_s)
        halfway_s = shift.before_s + min((shift.after_s - shift.before_s) / 2, 2 * ALLOWANCE * shift.before_s)
        self._num_back = self._num_back + 1 if block_s < halfway_s else 0
        if self._num_back < RETURN_BLOCKS:
            during = self._since[: len(self._since) - self._num_back]
            shift.after_s = median(during)
            return
        if len(self._since) <= SHORT_BLOCKS:
            self._learn_noise(self._since)
        shift.last_step = step - RETURN_BLOCKS * BLOCK_STEPS
        self.ended.append(shift)
        self.shift = None
