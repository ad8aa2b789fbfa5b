"""Decide at which step the job is stopped before its own end: the same step on all ranks.

In: FLATOUT_STOP_AFTER, a number of ordinary steps after the warm-up: the plan that all ranks share determines the step.
Or FLATOUT_STOP_AFTER_S, seconds since torch was imported on rank 0: rank 0 then announces a step far enough ahead that
the other ranks read the announcement in time. The limit that comes first counts. A job that ends earlier ends as usual.
"""

from __future__ import annotations

import json
import os
import time
from math import ceil
from pathlib import Path

from flatout.inside.identity import Identity
from flatout.inside.phases.consensus import NUM_RECOVERY_STEPS, TracePlan
from flatout.inside.settings import RecorderSettings

_POLL_S = 0.02
_NEAR_S = 1.0
_NOTICE_S, _NOTICE_ACROSS_NODES_S = 2.0, 5.0
_IMPORTED_S = time.monotonic()


class StopCondition:
    """The step at which the job is stopped; `step` is None until it is decided."""

    def __init__(self, settings: RecorderSettings, identity: Identity, generation: int) -> None:
        self.step: int | None = None  # the first step that does not run
        self.reason = ""
        self._steps, self._limit_s = settings.stop_after, settings.stop_after_s
        self._is_trial = settings.is_trial
        self._identity = identity
        self._path: Path = settings.state / f"stop-{generation}"
        self._next_look = 0.0
        if self._limit_s is not None and identity.world_size > 1:
            # Every rank creates the file empty before reading it, so that no file server caches its absence.
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644))

    @property
    def is_asked(self) -> bool:
        return self._steps is not None or self._limit_s is not None

    @property
    def needs_each_step(self) -> bool:
        """Whether the stop is near, so that the end of each step must be reported at once."""
        if self.step is not None:
            return True
        if self._limit_s is None:
            return False
        return time.monotonic() - _IMPORTED_S >= self._limit_s - _NEAR_S

    def agreed(self, plan: TracePlan) -> None:
        """Choose the step from the plan, which all ranks know by its `flops_step`; disturbed steps do not count."""
        if self._steps is None:
            return
        step = max(plan.settled + self._steps, plan.flops_step)
        is_disturbed = step > plan.flops_step or plan.start is not None  # a trace is completed first
        if is_disturbed and not self._is_trial:
            last_disturbed = plan.flops_step if plan.start is None else plan.start + plan.num_steps - 1
            step += last_disturbed + 1 + NUM_RECOVERY_STEPS - plan.flops_step
        self._stop_before(step, "steps")

    def look(self, following: int, step_s: float) -> None:
        """Check the time limit between two steps; `following` is the number of the next step."""
        now = time.monotonic()
        if self._limit_s is None or self.reason == "time" or now < self._next_look:
            return
        if self._identity.rank == 0:
            is_step_time_known = step_s > 0 or self._identity.world_size == 1
            # Without a step time, nobody knows by which step the other ranks will have read the announcement.
            if now - _IMPORTED_S >= self._limit_s and is_step_time_known:
                self._announce(following + self._num_notice_steps(step_s))
            return
        self._next_look = now + _POLL_S
        text = self._path.read_text() if self._path.exists() else ""
        if text.endswith("\n"):
            self._stop_before(int(json.loads(text)["step"]), "time")

    def _announce(self, step: int) -> None:
        if self._identity.world_size > 1:
            self._path.write_text(json.dumps({"step": step}) + "\n")
        self._stop_before(step, "time")

    def is_due(self, following: int) -> bool:
        return self.step is not None and following >= self.step

    def _num_notice_steps(self, step_s: float) -> int:
        """Return how many steps the other ranks need to read the file; they poll at least twice per second."""
        if self._identity.world_size == 1:
            return 0
        is_one_node = self._identity.num_nodes in (None, 1)
        return ceil((_NOTICE_S if is_one_node else _NOTICE_ACROSS_NODES_S) / step_s)

    def _stop_before(self, step: int, reason: str) -> None:
        if self.step is None or step < self.step:
            self.step, self.reason = step, reason
        elif reason == "time":
            self._limit_s = None  # the other limit comes first
