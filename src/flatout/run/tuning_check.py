"""Check a running job against its tuning, and go back to the job without the changes if they do not help here.

In: heartbeats of the running job. Out: messages, lines of the ledger, and whether the attempt is to be ended: after a
regression was found, once a further checkpoint is written. Each job is checked once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from flatout.keep.expectation import ExpectationWatch
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.ledger import LedgerFile
from flatout.records.expectation import ObservedSteps, StepExpectation
from flatout.report.expectation_text import expectation_sentence, other_scale_sentence

OnRegression = Literal["off", "warn", "revert"]


class TuningCheck:
    def __init__(
        self,
        expectation: StepExpectation,
        writer: LedgerFile,
        *,
        reverts: bool,
        device: str | None,
        say: Callable[[str], object],
    ) -> None:
        self._expectation = expectation
        self._watch = ExpectationWatch(expectation)
        self._writer = writer
        self._reverts = reverts
        self._device = device
        self._say = say
        self._num_checkpoints: int | None = None  # when the regression was found; None: there is nothing to revert
        self.is_reverted = False

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Compare the steps, once there are enough."""
        if self._watch.is_done or not ranks:
            return
        reason = other_scale_sentence(self._expectation, num_ranks=ranks[0].world_size, device=self._device)
        if reason is not None and ranks[0].num_steps:
            self._watch.is_done = True
            self._say(reason)
            self._writer.write("tuning_check", outcome="not_compared", reason=reason)
            return
        observed = self._watch.look(ranks)
        if observed is not None:
            self._report(observed, ranks)

    def ends_attempt(self, ranks: Sequence[HeartbeatSample]) -> bool:
        """Return whether to end the attempt now: after a regression, a further checkpoint is complete."""
        if self._num_checkpoints is None or self.is_reverted or _num_checkpoints(ranks) <= self._num_checkpoints:
            return False
        self.is_reverted = True
        step = max((rank.num_steps for rank in ranks), default=0)
        self._say("a checkpoint was written: the job is restarted without the changes")
        self._writer.write("reverted", steps=step)
        return True

    def _report(self, observed: ObservedSteps, ranks: Sequence[HeartbeatSample]) -> None:
        reverts = self._reverts and observed.outcome == "regression"
        self._say(expectation_sentence(observed, self._expectation))
        if reverts:
            self._num_checkpoints = _num_checkpoints(ranks)
            self._say("it goes back to the job without the changes at the next checkpoint")
        elif observed.outcome == "regression":
            self._say("way out: run without --config, or tune on this machine and scale")
        self._writer.write(
            "tuning_check",
            **msgspec.to_builtins(observed),
            tuned_s=(self._expectation.low_s, self._expectation.high_s),
            without_s=self._expectation.without_s,
            reverts=reverts,
        )


def _num_checkpoints(ranks: Sequence[HeartbeatSample]) -> int:
    return max((rank.num_checkpoints for rank in ranks), default=0)
