"""Decide at which step the job is stopped before its own end: the same step on all ranks.

In: FLATOUT_STOP_AFTER, a number of ordinary steps after the warm-up: the plan that all ranks share determines the step.
Or FLATOUT_STOP_RULE, of a trial: rank 0 counts steps, see `counted_steps`. Or FLATOUT_STOP_AFTER_S, seconds since torch
was imported on rank 0. In these cases rank 0 announces a step far enough ahead that the other ranks read the
announcement in time. The limit that comes first counts. A job that ends earlier ends as usual.
"""

from __future__ import annotations

import json
import os
import time
from math import ceil
from pathlib import Path

from flatout.inside.identity import Identity
from flatout.inside.phases.consensus import NUM_RECOVERY_STEPS, TracePlan
from flatout.inside.phases.counted_steps import CountedSteps
from flatout.inside.protocol import StopReason
from flatout.inside.settings import RecorderSettings

_POLL_S = 0.02
_NEAR_S = 1.0
_NOTICE_S, _NOTICE_ACROSS_NODES_S = 2.0, 5.0
# In a trial that counts its steps, the other ranks look for the announcement after each step, or every `_POLL_S`.
_NOTICE_TO_TRIAL_S, _NOTICE_TO_TRIAL_ACROSS_NODES_S = 0.3, 3.0
# Other ranks can be ahead of rank 0: on a CPU by less than a step, because they wait for each other in collectives; on
# a GPU by more, because their hosts do not wait.
_MIN_NOTICE_STEPS, _MIN_NOTICE_STEPS_ON_GPU = 2, 4
_IMPORTED_S = time.monotonic()


class StopCondition:
    """The step at which the job is stopped; `step` is None until it is decided."""

    def __init__(self, settings: RecorderSettings, identity: Identity, generation: int) -> None:
        self.step: int | None = None  # the first step that does not run
        self.reason = ""
        self._steps, self._limit_s = settings.stop_after, settings.stop_after_s
        self._rule = settings.stop_rule if settings.is_trial else None
        self._counted = CountedSteps(self._rule) if self._rule is not None else None
        self._is_counting = False
        self._has_announced = False
        self._is_trial = settings.is_trial
        self._identity = identity
        self._path: Path = settings.state / f"stop-{generation}"
        self._next_look = 0.0
        if self._may_be_announced and identity.world_size > 1:
            # Every rank creates the file empty before reading it, so that no file server caches its absence.
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644))

    @property
    def is_asked(self) -> bool:
        return self._steps is not None or self._may_be_announced

    @property
    def _may_be_announced(self) -> bool:
        return self._limit_s is not None or self._rule is not None

    @property
    def needs_each_step(self) -> bool:
        """Whether the stop is near or steps are counted, so that the end of each step must be reported at once."""
        if self.step is not None or self._is_counting:
            return True
        if self._limit_s is None:
            return False
        return time.monotonic() - _IMPORTED_S >= self._limit_s - _NEAR_S

    def agreed(self, plan: TracePlan) -> None:
        """Choose the step from the plan, which all ranks know by its `flops_step`; disturbed steps do not count."""
        self._is_counting = self._counted is not None
        if self._rule is not None and self._rule.is_fixed:
            self._stop_before(max(plan.settled + self._rule.max_steps, plan.flops_step), StopReason.MAX)
        if self._steps is None:
            return
        step = max(plan.settled + self._steps, plan.flops_step)
        is_disturbed = step > plan.flops_step or plan.start is not None  # a trace is completed first
        if is_disturbed and not self._is_trial:
            last_disturbed = plan.flops_step if plan.start is None else plan.start + plan.num_steps - 1
            step += last_disturbed + 1 + NUM_RECOVERY_STEPS - plan.flops_step
        self._stop_before(step, StopReason.STEPS)

    def count(self, step_s: float) -> None:
        """Take the time of a step after the warm-up."""
        if self._counted is not None:
            self._counted.add(step_s)

    def look(self, following: int, step_s: float) -> None:
        """Check the limits between two steps; `following` is the number of the next step."""
        if not self._may_be_announced or self._has_announced:
            return
        now = time.monotonic()
        if self._identity.rank == 0:
            self._announce_if_due(following, step_s, now)
        elif now >= self._next_look:
            self._next_look = now + _POLL_S
            text = self._path.read_text() if self._path.exists() else ""
            if text.endswith("\n"):
                announcement = json.loads(text)
                self._has_announced = True
                self._stop_before(int(announcement["step"]), str(announcement["reason"]))

    def _announce_if_due(self, following: int, step_s: float, now: float) -> None:
        is_step_time_known = step_s > 0 or self._identity.world_size == 1
        # Without a step time, nobody knows by which step the other ranks will have read the announcement.
        if not is_step_time_known:
            return
        if self._limit_s is not None and now - _IMPORTED_S >= self._limit_s:
            self._announce(following + self._num_steps_ahead(step_s), StopReason.TIME)
            return
        if self._counted is None or not self._counted.num_steps:
            return
        num_ahead = self._num_steps_ahead(step_s)
        reason = self._counted.reason_to_stop(num_ahead)
        if reason is not None:
            self._announce(following + num_ahead, reason)

    def _num_steps_ahead(self, step_s: float) -> int:
        """Return by how many steps the other ranks will have read an announcement of now."""
        is_one_node = self._identity.num_nodes in (None, 1)
        if self._counted is None or not self._counted.num_steps:
            return self._num_notice_steps(_NOTICE_S if is_one_node else _NOTICE_ACROSS_NODES_S, step_s)
        notice_s = _NOTICE_TO_TRIAL_S if is_one_node else _NOTICE_TO_TRIAL_ACROSS_NODES_S
        fewest = _MIN_NOTICE_STEPS if self._identity.backend == "gloo" else _MIN_NOTICE_STEPS_ON_GPU
        return self._num_notice_steps(notice_s, min(step_s, self._counted.median_s), fewest)

    def _num_notice_steps(self, notice_s: float, step_s: float, fewest: int = 1) -> int:
        """Return how many steps the other ranks need to read the announcement."""
        if self._identity.world_size == 1:
            return 0
        return max(ceil(notice_s / step_s), fewest)

    def _announce(self, step: int, reason: str) -> None:
        self._has_announced = True
        if self.step is not None and self.step <= step:
            return  # all ranks stop before that, as the plan says
        if self._identity.world_size > 1:
            self._path.write_text(json.dumps({"step": step, "reason": reason}) + "\n")
        self._stop_before(step, reason)

    def is_due(self, following: int) -> bool:
        return self.step is not None and following >= self.step

    def _stop_before(self, step: int, reason: str) -> None:
        if self.step is None or step < self.step:
            self.step, self.reason = step, reason
