"""Detect where one step ends and the next begins, from the events of a training loop. This module does not use torch.

In: optimizer steps, batches from loaders, backward passes, calls of models without gradients. Out: whether the event
ended a step.

If an optimizer steps, steps are counted by optimizer. Several optimizers that step in turn (the two optimizers of a
GAN, Muon and AdamW, one per layer) make one step, which ends with the optimizer that appeared last. Without an
optimizer, each batch is a step; without batches, each backward pass; and in a script that only infers, each call of its
first model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from enum import StrEnum

# After this many steps of one optimizer without a step of the closing optimizer, the latter is no longer in use.
MAX_STEPS_WITHOUT_CLOSER = 64
# After this many calls of other models, the model whose calls were steps is no longer in use.
MAX_CALLS_OF_OTHERS = 64


class StepSource(StrEnum):
    """The kinds of events that steps are counted by, in order of preference."""

    OPTIMIZER = "optimizer"
    BATCH = "batch"
    BACKWARD = "backward"
    FORWARD = "forward"


class StepDetector:
    """Detects the ends of steps: call a method for each event; it returns whether the event ended a step."""

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
        self._model: Hashable = None  # each of its calls is a step of a script that only infers
        self._num_calls_of_others = 0
        self.num_calls_elsewhere = 0  # calls of models on threads whose events are not counted

    def optimizer(self, optimizer: Hashable) -> bool:
        """Take the step of an optimizer."""
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
        """Take the deletion of an optimizer, which the optimizer of a new fold or round will replace."""
        self._known.discard(optimizer)
        self._since_close.pop(optimizer, None)
        if optimizer == self._closer:
            self._closer = None

    def batch(self) -> bool:
        """Take the request for a batch, which ends the step of the previous batch."""
        self.restarts = False
        if self.source is StepSource.OPTIMIZER:
            return False
        self.restarts = self.source in (StepSource.BACKWARD, StepSource.FORWARD) and self._has_closed
        self.source = StepSource.BATCH
        ended, self._has_batch = self._has_batch, True
        self._has_closed |= ended
        return ended

    def no_batch(self) -> None:
        """Take the end of a loader's batches: later events belong to the step of the next batch."""
        self._has_batch = False

    def backward(self) -> bool:
        """Take the start of a backward pass, which ends the step of the previous pass."""
        self.restarts = self.source is StepSource.FORWARD and self._has_closed
        if self.source not in (None, StepSource.BACKWARD, StepSource.FORWARD):
            self._has_backward = True
            return False
        self.source = StepSource.BACKWARD
        ended, self._has_backward = self._has_backward, True
        self._has_closed |= ended
        return ended

    def forward(self, model: Hashable) -> bool:
        """Take the call of a model without gradients, which ends the step of the same model's previous call.

        Calls of other models belong to the step, until the first model is called no more.
        """
        self.restarts = False
        if not self.counts_forward:
            return False
        self.source = StepSource.FORWARD
        if model == self._model:
            self._num_calls_of_others = 0
            self._has_closed = True
            return True
        self._num_calls_of_others += 1
        if self._model is None or self._num_calls_of_others > MAX_CALLS_OF_OTHERS:
            self._model, self._num_calls_of_others = model, 0
        return False

    @property
    def counts_forward(self) -> bool:
        """Whether the calls of models are the only events so far."""
        return self.source in (None, StepSource.FORWARD)

    @property
    def is_training(self) -> bool:
        """Whether gradients are computed, as opposed to an evaluation."""
        return self._has_backward or self.source is StepSource.OPTIMIZER
