"""Restart a job that ran out of GPU memory with half the microbatch and twice the passes: the same samples per step.

In: how an attempt ended, and the heartbeats of its ranks. Out: whether to restart it, the command of the next attempt,
and reports. In a dry run, only the report says what would be done. It ends when the microbatch cannot be halved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

import msgspec

from flatout.change.micro_batch import halved, micro_batch_of, with_micro_batch
from flatout.keep.attempt import AttemptResult
from flatout.keep.heartbeats import BLOCK_STEPS, HeartbeatSample
from flatout.keep.rules import Judgement
from flatout.keep.supervise import Decision
from flatout.records.adaptation import MemoryAdaptation, MicroBatch

SETTLED_STEPS = 2 * BLOCK_STEPS  # without running out of memory, until a smaller microbatch is kept


class MemoryAdapter:
    """Follows one run. `options` are the script's own two options, unless they are in `KNOWN_OPTIONS`."""

    def __init__(
        self,
        mode: Literal["dry-run", "on"],
        command: Sequence[str],
        options: tuple[str, str] | None,
        *,
        report: Callable[[MemoryAdaptation], object],
    ) -> None:
        self._mode = mode
        self._report = report
        self._first = micro_batch_of(command, options)
        self._now = self._first
        self._step_s: float | None = None  # in this attempt
        self._pending: MemoryAdaptation | None = None  # changed, and still to be seen whether it fits

    @property
    def micro_batch(self) -> MicroBatch | None:
        """Return the microbatch of the next attempt; None if the command does not state it."""
        return self._now

    def command(self, words: Sequence[str]) -> Sequence[str]:
        """Return the command with the microbatch that fits, as far as is known."""
        if self._now is None or self._now == self._first:
            return words
        return with_micro_batch(words, self._now)

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Look at the ranks: after enough steps, a smaller microbatch is kept."""
        times = [rank.block_median_s for rank in ranks]
        known = [time_s for time_s in times if time_s is not None]
        self._step_s = median(known) if known else None
        has_settled = bool(ranks) and min(rank.num_steps for rank in ranks) >= SETTLED_STEPS
        if self._pending is not None and has_settled:
            self._report(msgspec.structs.replace(self._pending, outcome="kept", after_s=self._step_s))
            self._pending = None

    def settles(self, judgement: Judgement, done: AttemptResult) -> Decision | None:
        """Return the decision to restart an attempt that ran out of GPU memory; None for any other end."""
        before, step_s = self._now, self._step_s
        self._step_s = None
        if judgement.failure_class != "device-oom" or before is None:
            return None
        after = halved(before)
        adaptation = MemoryAdaptation(
            outcome=self._outcome(after),
            before=before,
            after=after,
            failed_at_step=done.evidence.step,
            before_s=step_s,
        )
        self._report(adaptation)
        if self._mode == "dry-run" or after is None:
            return None
        self._now, self._pending = after, adaptation
        return Decision(restarts=True, why="restarted with a smaller microbatch, without using up a restart")

    def _outcome(self, after: MicroBatch | None) -> Literal["would_change", "changed", "given_up"]:
        if after is None:
            return "given_up"
        return "would_change" if self._mode == "dry-run" else "changed"
