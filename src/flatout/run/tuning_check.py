"""Check a running job against its tuning, and go back to the job without the changes if they do not help here.

In: heartbeats of the running job. Out: messages, lines of the ledger, and whether the attempt is to be ended: after a
regression was found, once a further checkpoint is written. Each job is checked once. On several nodes, the one with
rank 0 checks, and the others go back when it does: no two nodes may run different settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from flatout.keep.expectation import ExpectationWatch
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.ledger import LedgerFile
from flatout.keep.peer_board import PeerBoard
from flatout.records.expectation import ObservedSteps, StepExpectation
from flatout.report.expectation_text import expectation_sentence, other_scale_sentence

OnRegression = Literal["off", "warn", "revert"]


class TuningCheck:
    def __init__(
        self,
        expectation: StepExpectation,
        writer: LedgerFile,
        *,
        nodes: PeerBoard,
        reverts: bool,
        device: str | None,
        num_nodes: int | None,
        say: Callable[[str], object],
    ) -> None:
        self._expectation = expectation
        self._watch = ExpectationWatch(expectation)
        self._writer = writer
        self._nodes = nodes
        self._reverts = reverts
        self._device = device
        self._num_nodes = num_nodes
        self._say = say
        self._num_checkpoints: int | None = None  # when the regression was found; None: there is nothing to revert
        self.is_reverted = False

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Compare the steps, once there are enough."""
        if self._watch.is_done or not ranks or ranks[0].rank != 0:
            return
        reason = other_scale_sentence(
            self._expectation, num_ranks=ranks[0].world_size, num_nodes=self._num_nodes, device=self._device
        )
        if reason is not None and ranks[0].num_steps:
            self._watch.is_done = True
            self._say(reason)
            self._writer.write("tuning_check", outcome="not_compared", reason=reason)
            return
        observed = self._watch.look(ranks)
        if observed is not None:
            self._report(observed, ranks)

    def ends_attempt(self, ranks: Sequence[HeartbeatSample]) -> bool:
        """Return whether to end the attempt now, or why it has ended: to restart the job without the changes.

        That is after a regression, once a further checkpoint is complete; or once another node has done so.
        """
        if self.is_reverted or not self._reverts:
            return False
        other = self._nodes.reverted_node()
        if other is not None:
            self._revert(ranks, f"{other} restarts the job without the changes: so does this node", node=other)
        elif self._num_checkpoints is not None and _num_checkpoints(ranks) > self._num_checkpoints:
            self._revert(ranks, "a checkpoint was written: the job is restarted without the changes")
        return self.is_reverted

    def _revert(self, ranks: Sequence[HeartbeatSample], sentence: str, **fields: str) -> None:
        self.is_reverted = True
        self._nodes.reverts()
        self._say(sentence)
        self._writer.write("reverted", steps=max((rank.num_steps for rank in ranks), default=0), **fields)

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
