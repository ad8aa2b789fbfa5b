"""Change what is trained where that makes steps shorter, from one checkpoint on, and back if it does not pay.

    exposed communication on all ranks      weights are averaged every 8 steps instead of gradients in each (local SGD)
    one rank that the others wait for       fewer of the step's samples for it, more for the others

Both are `semantic`: the model is trained in another way, so a separate option asks for them. In: the heartbeats of
the ranks. Out: whether to end the attempt at a checkpoint, the patch of the next one, and reports. One change is made;
if it does not pay, the training goes back at the next checkpoint. In a dry run, only the report says what would be.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, median
from typing import Literal

import msgspec

from flatout.keep.attempt import AttemptResult
from flatout.keep.heartbeats import BLOCK_STEPS, HeartbeatSample
from flatout.keep.rules import Judgement
from flatout.keep.supervise import REVERTED, Decision
from flatout.records.adaptation import SemanticAdaptation
from flatout.watch.diagnosis.job_steps import JobSteps

LEAST_EXPOSED = 0.3  # share of the step, on the rank that waits least, from which local SGD is worth another training
LEAST_LATE = 0.1  # share of the step that all others wait for one rank
LEAST_GAIN = 0.03  # of the mean step
LEAST_EXCHANGES = 7
MEASURED_STEPS = 6 * BLOCK_STEPS  # a multiple of `EVERY`, so that each average is in it
SETTLING_STEPS = 2 * BLOCK_STEPS
EVERY = 8
_LEAST_PERCENT, _MOST_PERCENT = 50, 95
_EXCLUDING = {"ddp_hook", "ddp_no_sync", "local_sgd", "work_share", "balanced_batches"}


class SemanticAdapter:
    """Follows one run on one node."""

    def __init__(
        self,
        mode: Literal["dry-run", "on"],
        *,
        report: Callable[[SemanticAdaptation], object],
    ) -> None:
        self._mode = mode
        self._report = report
        self._state: Literal["observing", "waiting", "measuring", "undoing", "over"] = "observing"
        self._steps = JobSteps()
        self._names: tuple[str, ...] = ()
        self._exposed_s: OrderedDict[int, dict[int, float]] = OrderedDict()
        self._recent_s: list[float] = []
        self._action: SemanticAdaptation | None = None
        self._is_on = False  # in the next attempt
        self._num_checkpoints = 0
        self._is_restarting = False

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Look at the ranks."""
        if self._state == "over" or len(ranks) < 2:
            return
        names = tuple(rank.name for rank in ranks)
        if names != self._names:
            self._begin()
            self._names = names
        new = [step.duration_s for step in self._steps.new_steps(ranks) if step.step > SETTLING_STEPS]
        self._recent_s = [*self._recent_s, *new][-MEASURED_STEPS:]
        self._note(ranks)
        if len(self._recent_s) < MEASURED_STEPS:
            return
        if self._state == "observing":
            self._observe(ranks)
        elif self._state == "measuring":
            self._measure(ranks)

    def ends_attempt(self, ranks: Sequence[HeartbeatSample]) -> bool:
        """Return whether to end the attempt now: at the first checkpoint since a change was decided."""
        if self._state not in ("waiting", "undoing"):
            return False
        self._is_restarting = _num_checkpoints(ranks) > self._num_checkpoints
        return self._is_restarting

    def settles(self, judgement: Judgement, done: AttemptResult) -> Decision | None:
        """Return the decision to restart with the change or without it, if this ended the attempt.

        An attempt that fails with the change before its second step, such as one that cannot continue the order of its
        data, is restarted without it.
        """
        if self._fails_to_start(judgement, done):
            return self._undo("it failed to start with another training: restarted with its own")
        if judgement.rule != REVERTED.rule or not self._is_restarting or self._action is None:
            return None
        self._is_restarting = False
        self._begin()
        if self._state == "waiting":
            self._state, self._is_on = "measuring", True
            self._report(msgspec.structs.replace(self._action, outcome="changed"))
            return Decision(restarts=True, why="restarted from its checkpoint with another training")
        return self._undo("restarted from its checkpoint with the training as it was")

    def _fails_to_start(self, judgement: Judgement, done: AttemptResult) -> bool:
        has_failed = judgement.rule not in ("done", "asked-to-end", REVERTED.rule)
        has_begun = any(rank.num_steps > 1 for rank in done.ranks)
        return self._state == "measuring" and has_failed and not has_begun

    def _undo(self, why: str) -> Decision:
        assert self._action is not None
        self._state, self._is_on = "over", False
        self._report(msgspec.structs.replace(self._action, outcome="undone"))
        return Decision(restarts=True, why=why)

    def patches(self, own: str | None) -> str | None:
        """Return the patches of the next attempt, added to the job's own; both as the value of the variable."""
        if not self._is_on or self._action is None:
            return own
        action = self._action
        parameters = {"every": action.every, "rank": action.rank, "percent": action.percent}
        stated = {name: value for name, value in parameters.items() if value is not None}
        return json.dumps([*_decoded(own), {"name": action.change, "parameters": stated}])

    def excludes(self, own: str | None) -> bool:
        """Return whether the job has patches which these changes exclude."""
        return any(patch.get("name") in _EXCLUDING for patch in _decoded(own))

    def _begin(self) -> None:
        """Forget the steps of the attempt before."""
        self._steps, self._names, self._recent_s = JobSteps(), (), []
        self._exposed_s.clear()

    def _note(self, ranks: Sequence[HeartbeatSample]) -> None:
        for rank in ranks:
            exchange = rank.exchange
            if exchange is not None and exchange.num_ranks == len(ranks) and exchange.step > SETTLING_STEPS:
                self._exposed_s.setdefault(exchange.step, {})[rank.rank or 0] = exchange.exposed_s
        while len(self._exposed_s) > 2 * LEAST_EXCHANGES:
            self._exposed_s.popitem(last=False)

    def _observe(self, ranks: Sequence[HeartbeatSample]) -> None:
        complete = [times for times in self._exposed_s.values() if len(times) == len(ranks)]
        if len(complete) < LEAST_EXCHANGES:
            return
        found = self._found({rank: median(times[rank] for times in complete) for rank in complete[0]})
        if found is None:
            return
        self._action = found
        self._report(found)
        self._num_checkpoints = _num_checkpoints(ranks)
        self._state = "over" if self._mode == "dry-run" else "waiting"

    def _found(self, exposed_s: Mapping[int, float]) -> SemanticAdaptation | None:
        """Return the change that the waits call for; None if they are short, or several ranks are late."""
        step_s = fmean(self._recent_s)
        late, *others = sorted(exposed_s, key=exposed_s.__getitem__)
        least_s = exposed_s[late]
        outcome: Literal["would_change", "change"] = "would_change" if self._mode == "dry-run" else "change"
        if least_s >= LEAST_EXPOSED * step_s:
            share = least_s / step_s
            gain = share * (1 - 1 / EVERY)
            return SemanticAdaptation(
                outcome=outcome,
                change="local_sgd",
                every=EVERY,
                rank=None,
                percent=None,
                share=share,
                before_s=step_s,
                expected_gain=gain,
            )
        late_s = exposed_s[others[0]] - least_s
        if late_s < LEAST_LATE * step_s:
            return None
        percent = _percent(step_s - least_s, late_s, len(exposed_s))
        return SemanticAdaptation(
            outcome=outcome,
            change="work_share",
            every=None,
            rank=late,
            percent=percent,
            share=late_s / step_s,
            before_s=step_s,
            expected_gain=(1 - percent / 100) * (step_s - least_s) / step_s,
        )

    def _measure(self, ranks: Sequence[HeartbeatSample]) -> None:
        assert self._action is not None
        after_s = fmean(self._recent_s)
        gain = 1 - after_s / self._action.before_s
        pays = gain >= LEAST_GAIN
        self._action = msgspec.structs.replace(self._action, after_s=after_s, measured_gain=gain)
        self._report(msgspec.structs.replace(self._action, outcome="kept" if pays else "undo"))
        self._num_checkpoints = _num_checkpoints(ranks)
        self._state = "over" if pays else "undoing"


def _percent(late_compute_s: float, late_s: float, num_ranks: int) -> int:
    """Return how much of its samples the late rank keeps, so that all take equally long.

    With the share x of its samples, its time is x c, and that of the others (c - late) (1 + (1 - x) / (n - 1)).
    """
    others_s = late_compute_s - late_s
    per_rank = others_s / (num_ranks - 1)
    share = (others_s + per_rank) / (late_compute_s + per_rank)
    return min(max(round(100 * share), _LEAST_PERCENT), _MOST_PERCENT)


def _decoded(patches: str | None) -> list[dict[str, object]]:
    return list(json.loads(patches or "[]"))


def _num_checkpoints(ranks: Sequence[HeartbeatSample]) -> int:
    return max((rank.num_checkpoints for rank in ranks), default=0)
