"""Where one step ends and the next begins, from what a training loop does. Knows nothing of torch.

In: optimizers that step, batches that loaders yield, backward passes. Out: whether that ended a step.

Steps are counted by optimizer if one steps. Several that step in turn (the two of a GAN, Muon and AdamW, one for each
layer) make one step, which ends with the optimizer that appeared last. Without any optimizer a step is a batch, and
without batches a backward pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from enum import StrEnum

# After this many steps of one optimizer without the closing one, the closing one is no longer in use.
MAX_STEPS_WITHOUT_CLOSER = 64


class StepSource(StrEnum):
    """What steps are counted by, in the order of preference."""

    OPTIMIZER = "optimizer"
    BATCH = "batch"
    BACKWARD = "backward"


class StepDetector:
    """Call a method for each event; each returns whether the event ended a step."""

    def __init__(self) -> None:
        self.source: StepSource | None = None
        self.num_optimizers = 0
        self.restarts = False  # the last event showed that all events before it belong to the first step
        self._known: set[Hashable] = set()
        self._closer: Hashable = None  # the optimizer that ends each step
        self._has_closed = False
        self._since_close: Counter[Hashable] = Counter()
        self._has_batch = False
        self._has_backward = False

    def optimizer(self, optimizer: Hashable) -> bool:
        """An optimizer has stepped."""
        self.restarts = False
        if optimizer == self._closer and self.num_optimizers == 1:
            self._has_closed = True
            return True
        if optimizer not in self._known:
            self.restarts = self._has_closed and (bool(self._known) or self.source is not StepSource.OPTIMIZER)
            self._known.add(optimizer)
            self._closer = optimizer
            self.num_optimizers = len(self._known)
            self.source = StepSource.OPTIMIZER
        self._since_close[optimizer] += 1
        if self._since_close[optimizer] > MAX_STEPS_WITHOUT_CLOSER:
            self._closer = optimizer
        if optimizer != self._closer:
            return False
        self._since_close.clear()
        self._has_closed = True
        return True

    def optimizer_is_gone(self, optimizer: Hashable) -> None:
        """An optimizer was deleted: that of a new fold or round will take its place."""
        self._known.discard(optimizer)
        self._since_close.pop(optimizer, None)
        if optimizer == self._closer:
            self._closer = None

    def batch(self) -> bool:
        """A loader is asked for a batch, which ends the step of the batch before it."""
        self.restarts = False
        if self.source is StepSource.OPTIMIZER:
            return False
        self.restarts = self.source is StepSource.BACKWARD and self._has_closed
        self.source = StepSource.BATCH
        ended, self._has_batch = self._has_batch, True
        self._has_closed |= ended
        return ended

    def no_batch(self) -> None:
        """The loader had no more batches: what follows belongs to the step of the next batch."""
        self._has_batch = False

    def backward(self) -> bool:
        """A backward pass begins, which ends the step of the one before it."""
        self.restarts = False
        if self.source not in (None, StepSource.BACKWARD):
            self._has_backward = True
            return False
        self.source = StepSource.BACKWARD
        ended, self._has_backward = self._has_backward, True
        self._has_closed |= ended
        return ended

    @property
    def is_training(self) -> bool:
        """Whether gradients are computed, as opposed to an evaluation."""
        return self._has_backward or self.source is StepSource.OPTIMIZER
