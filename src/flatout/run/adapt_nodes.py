"""Let an elastic job continue without this node after the next checkpoint, if it is late; back if that does not pay.

In: the heartbeats of this node's ranks, and what the other nodes report of theirs. Out: whether to end this node's part
of the job, and reports. In a dry run, only the report says what would be done.

In an exchange of gradients the ranks of a late node wait least. Without them each step takes as much less time as the
others wait longer than they do, but has fewer samples: the node leaves only if samples per second grow. The other
nodes lose their peer at that moment and start again from the checkpoint, by their own `flatout run`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

import msgspec

from flatout.keep.attempt import AttemptResult
from flatout.keep.heartbeats import HeartbeatSample
from flatout.keep.judgement_words import ASKED
from flatout.keep.peer_board import PeerBoard, PeerRank
from flatout.keep.rules import Judgement
from flatout.keep.supervise import REVERTED, Decision
from flatout.launch import ExitStatus, pause
from flatout.records.adaptation import LateNodeAdaptation

LEAST_GAIN = 0.03  # of the samples per second
LEAST_EXCHANGES = 7  # timed on all ranks
FIRST_STEP = 20  # earlier exchanges belong to the warm-up
MEASURED_STEPS = 100  # of the other nodes, once this one has left
_MOST_KEPT = 64
_MOST_AWAY_S = 1800.0


class LateNodeAdapter:
    """Follows one node of an elastic job, which needs `least_nodes`."""

    def __init__(
        self,
        mode: Literal["dry-run", "on"],
        nodes: PeerBoard,
        least_nodes: int,
        *,
        report: Callable[[LateNodeAdaptation], object],
        wait: Callable[[float], ExitStatus | None] = pause,
    ) -> None:
        self._mode = mode
        self._nodes = nodes
        self._least_nodes = least_nodes
        self._report = report
        self._wait = wait
        self._names: tuple[str, ...] = ()
        self._exposed_s: OrderedDict[int, dict[int, float]] = OrderedDict()  # by step and rank
        self._action: LateNodeAdaptation | None = None
        self._num_checkpoints: int | None = None  # when the node was found to be late; None: it stays
        self._is_leaving = False
        self._is_over = False

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Look at the ranks of all nodes, and decide once whether this node should leave."""
        names = tuple(rank.name for rank in ranks)
        if names != self._names:  # another attempt
            self._names, self._num_checkpoints = names, None
            self._exposed_s.clear()
        if self._is_over or self._num_checkpoints is not None or not ranks:
            return
        others = self._ranks_of_others()
        self._note(ranks, others)
        found = self._late_node(ranks, others)
        if found is None:
            return
        self._action = found
        self._report(found)
        if self._mode == "dry-run":
            self._is_over = True
        else:
            self._num_checkpoints = _num_checkpoints(ranks, others)

    def ends_attempt(self, ranks: Sequence[HeartbeatSample]) -> bool:
        """Return whether to end this node's part now: at the first checkpoint after it was found to be late."""
        if self._num_checkpoints is None:
            return False
        self._is_leaving = _num_checkpoints(ranks, self._ranks_of_others()) > self._num_checkpoints
        return self._is_leaving

    def settles(self, judgement: Judgement, done: AttemptResult) -> Decision | None:
        """Return what happens after this node has left: it stays away, or comes back if that did not pay."""
        if judgement.rule != REVERTED.rule or not self._is_leaving or self._action is None:
            return None
        self._is_leaving, self._num_checkpoints, self._is_over = False, None, True
        self._report(msgspec.structs.replace(self._action, outcome="left"))
        gain, stopped = self._gain_without_this_node(self._action)
        if stopped is not None:
            return Decision(restarts=False, why=ASKED, goes_on=True)
        pays = gain is None or gain >= LEAST_GAIN
        self._report(msgspec.structs.replace(self._action, outcome="kept" if pays else "undone", measured_gain=gain))
        if not pays:
            return Decision(restarts=True, why="this node joins the job again")
        why = "this node is late: the launcher is elastic, and the others continue"
        self._nodes.gives_up(why)
        return Decision(restarts=False, why=why, goes_on=True)

    def _ranks_of_others(self) -> list[PeerRank]:
        return [rank for status in self._nodes.others() for rank in status.ranks]

    def _note(self, ranks: Sequence[HeartbeatSample], others: Sequence[PeerRank]) -> None:
        own = [(rank.rank or 0, rank.exchange.step, rank.exchange.exposed_s) for rank in ranks if rank.exchange]
        theirs = [
            (rank.rank, rank.exchange_step, rank.exposed_s)
            for rank in others
            if rank.exchange_step is not None and rank.exposed_s is not None
        ]
        for number, step, exposed_s in (*own, *theirs):
            if step >= FIRST_STEP:
                self._exposed_s.setdefault(step, {})[number] = exposed_s
        while len(self._exposed_s) > _MOST_KEPT:
            self._exposed_s.popitem(last=False)

    def _late_node(self, ranks: Sequence[HeartbeatSample], others: Sequence[PeerRank]) -> LateNodeAdaptation | None:
        """Return what leaving would gain; None if it is unknown yet, not enough, or too few nodes would be left."""
        num_ranks, own = ranks[0].world_size, {rank.rank or 0 for rank in ranks}
        step_s = ranks[0].block_median_s
        num_others = sum(bool(status.ranks) for status in self._nodes.others())
        is_complete = len(own) + len(others) == num_ranks
        if step_s is None or not is_complete or num_others < self._least_nodes:
            return None
        late_s = [_late_s(times, own) for times in self._exposed_s.values() if len(times) == num_ranks]
        if len(late_s) < LEAST_EXCHANGES:
            return None
        shorter_s = min(max(median(late_s), 0.0), 0.99 * step_s)
        num_left = num_ranks - len(own)
        gain = (num_left / num_ranks) / (1 - shorter_s / step_s) - 1
        if gain < LEAST_GAIN:
            return None
        return LateNodeAdaptation(
            outcome="would_leave" if self._mode == "dry-run" else "leaves",
            node=self._nodes.name,
            late_s=shorter_s,
            step_s=step_s,
            num_ranks=num_ranks,
            num_ranks_left=num_left,
            expected_gain=gain,
        )

    def _gain_without_this_node(self, action: LateNodeAdaptation) -> tuple[float | None, ExitStatus | None]:
        """Wait until the others have made enough steps. Return what was gained, or the signal to end."""
        waited_s = 0.0
        while waited_s < _MOST_AWAY_S:
            stopped = self._wait(1.0)
            if stopped is not None:
                return None, stopped
            waited_s += 1.0
            self._nodes.look(lambda: ())
            others = self._ranks_of_others()
            times = [rank.step_s for rank in others if rank.step_s is not None and rank.steps >= MEASURED_STEPS]
            is_settled = all(rank.world_size == action.num_ranks_left for rank in others)
            if times and len(times) == action.num_ranks_left and is_settled:
                return (action.num_ranks_left / median(times)) / (action.num_ranks / action.step_s) - 1, None
        return None, None


def _late_s(exposed_s: dict[int, float], own: set[int]) -> float:
    """Return how much longer all other ranks waited in an exchange than any rank of this node."""
    others_s = min(time_s for rank, time_s in exposed_s.items() if rank not in own)
    return others_s - max(time_s for rank, time_s in exposed_s.items() if rank in own)


def _num_checkpoints(ranks: Sequence[HeartbeatSample], others: Sequence[PeerRank]) -> int:
    own = [rank.num_checkpoints for rank in ranks]
    return max([*own, *(rank.num_checkpoints for rank in others)], default=0)
