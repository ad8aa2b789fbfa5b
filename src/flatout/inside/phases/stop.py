"""At which step the job is to be stopped before its own end: the same one on all ranks.

In: FLATOUT_STOP_AFTER, so many ordinary steps from the one where step times had settled, which follows from the plan
that all ranks share; or FLATOUT_STOP_AFTER_S, seconds since torch was imported on rank 0, which then names a step far
enough ahead that the others read of it in time. Whichever comes first. A job that ends earlier ends as ever.
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
_BEGAN = time.monotonic()


class StopCondition:
    def __init__(self, settings: RecorderSettings, identity: Identity, generation: int) -> None:
        self.step: int | None = None  # the step that does not begin any more
        self.reason = ""
        self._steps, self._limit_s = settings.stop_after, settings.stop_after_s
        self._is_trial = settings.is_trial
        self._identity = identity
        self._path: Path = settings.state / f"stop-{generation}"
        self._next_look = 0.0
        if self._limit_s is not None and identity.world_size > 1:
            # Made empty by all before it is read, so that no file server remembers its absence.
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644))

    @property
    def is_asked(self) -> bool:
        return self._steps is not None or self._limit_s is not None

    @property
    def needs_each_step(self) -> bool:
        """The stop is near: the end of each step is to be told at once."""
        if self.step is not None:
            return True
        return self._limit_s is not None and time.monotonic() - _BEGAN >= self._limit_s - _NEAR_S

    def agreed(self, plan: TracePlan) -> None:
        """The plan is known to all ranks by its `flops_step`; what the recorder disturbs does not count."""
        if self._steps is None:
            return
        step = max(plan.settled + self._steps, plan.flops_step)
        is_disturbed = step > plan.flops_step or plan.start is not None  # a trace that is asked for is made
        if is_disturbed and not self._is_trial:
            first_ordinary = plan.flops_step + 1 if plan.start is None else plan.start + plan.num_steps
            step += first_ordinary + NUM_RECOVERY_STEPS - plan.flops_step
        self._stop_before(step, "steps")

    def look(self, following: int, step_s: float) -> None:
        """Between two steps, of which the second has the number `following`."""
        now = time.monotonic()
        if self._limit_s is None or self.reason == "time" or now < self._next_look:
            return
        if self._identity.rank != 0:
            self._next_look = now + _POLL_S
            text = self._path.read_text() if self._path.exists() else ""
            if text.endswith("\n"):
                self._stop_before(int(json.loads(text)["step"]), "time")
        elif now - _BEGAN >= self._limit_s:
            step = following + self._notice(step_s)
            if self._identity.world_size > 1:
                self._path.write_text(json.dumps({"step": step}) + "\n")
            self._stop_before(step, "time")

    def is_due(self, following: int) -> bool:
        return self.step is not None and following >= self.step

    def _notice(self, step_s: float) -> int:
        """So many steps that the others, who look twice a second when nothing else is due, have read of it."""
        if self._identity.world_size == 1 or step_s <= 0:
            return 0
        return ceil((_NOTICE_S if self._identity.num_nodes in (None, 1) else _NOTICE_ACROSS_NODES_S) / step_s)

    def _stop_before(self, step: int, reason: str) -> None:
        if self.step is None or step < self.step:
            self.step, self.reason = step, reason
        elif reason == "time":
            self._limit_s = None  # the other comes first
