"""Find that a job does other work per step: another batch, another sequence length. In: the counts of its ranks.

A step with more tokens takes longer, and that is not a slowdown; nor is one with larger images. Tokens per step are
compared, or the values in a batch where these do not show tokens, as means over blocks of steps: with the median of
the blocks before, and by how much these differ among each other, as batches of texts of different lengths do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median

from flatout.keep.heartbeats import BLOCK_STEPS, HeartbeatSample

LEAST_CHANGE = 0.05  # of the work, from which the step time is learned again
NUM_SDS = 6.0  # of the blocks before, if that is more
LEAST_BLOCKS = 3  # before a change can be seen
_CONFIRMED = 2  # blocks in a row
_MOST_KEPT = 45
_MAD_TO_SD = 1.4826


class WorkPerStep:
    """The work of one job, by blocks. Where batches hold no tensor, it never changes."""

    def __init__(self) -> None:
        self._last: tuple[int, int] | None = None  # steps and work of all ranks so far
        self._blocks: deque[float] = deque(maxlen=_MOST_KEPT)
        self._others: list[float] = []  # the last blocks that differ

    def changes(self, samples: Sequence[HeartbeatSample]) -> bool:
        """Add the counts of now. Return whether the work has changed, by this block and the one before."""
        counts = [_count(sample) for sample in samples]
        known = [count for count in counts if count is not None]
        if not known or len(known) < len(samples):
            return False
        now = sum(sample.num_steps for sample in samples), sum(known)
        if self._last is None:
            self._last = now
            return False
        steps = now[0] - self._last[0]
        num_blocks = steps // (BLOCK_STEPS * len(samples))
        if not num_blocks:
            return False
        work = (now[1] - self._last[1]) / steps
        self._last = now
        return self._is_other(work, num_blocks)

    def _is_other(self, work: float, num_blocks: int = 1) -> bool:
        """Add blocks of the same mean; return whether the work has changed."""
        if len(self._blocks) < LEAST_BLOCKS or not self._differs(work):
            self._blocks.extend([*self._others, work])
            self._others = []
            return False
        self._others += [work] * num_blocks
        if len(self._others) < _CONFIRMED:
            return False
        self._blocks = deque(self._others, maxlen=_MOST_KEPT)
        self._others = []
        return True

    def _differs(self, work: float) -> bool:
        usual = median(self._blocks)
        sd = _MAD_TO_SD * median(abs(block - usual) for block in self._blocks)
        return abs(work - usual) > max(LEAST_CHANGE * usual, NUM_SDS * sd)


def _count(sample: HeartbeatSample) -> int | None:
    """Return the work of a rank's batches so far. A heartbeat of an older Flatout counts no values."""
    counts = (sample.num_tokens, sample.num_values, sample.num_samples)
    return next((count for count in counts if count is not None), None)
