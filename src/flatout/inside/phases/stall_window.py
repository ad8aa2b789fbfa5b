"""Trace a second window, at the next stall of the period that the step times show: one window, three steps.

In: the time of each step after the first trace. Out: the kind of the next step, and the trace of a stall. Rank 0 finds
the period and announces the window in a file, far enough ahead that all ranks read it in time; no rank waits, and a
rank that reads it too late skips the window. A stall that would take too long to trace, or make too large a file, is
not traced. If the job ends first, there is no window, and the recording reports no problem.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from math import ceil

from flatout.inside.identity import Identity
from flatout.inside.log import LOG
from flatout.inside.phases.consensus import NUM_RECOVERY_STEPS, PlanFile, StallPlan
from flatout.inside.phases.stall_watch import StallPeriod, StallWatch
from flatout.inside.phases.trace_window import EVENTS_PER_OPERATOR, MAX_EVENTS, TraceWindow, WindowState
from flatout.inside.protocol import File, StepFileEvent, StepKind
from flatout.inside.recording.step_file import StepFile
from flatout.inside.settings import RecorderSettings

NUM_STEPS = 3  # traced: the step that is due to stall, and the steps before and after it
MAX_STALL_S = 20.0
_NOTICE_S, _NOTICE_ACROSS_NODES_S = 1.5, 12.0
_POLL_NS, _POLL_ACROSS_NODES_NS = 100_000_000, 5_000_000_000
_NEAR_S = 1.0  # longer than the steps that are reported together
_MAX_WATCH_S = 600.0  # after this time without a period, nobody looks for one any more


class StallWindow:
    """The second trace window of a rank: nothing, until a period is found or announced."""

    def __init__(self, settings: RecorderSettings, identity: Identity, file: StepFile, generation: int) -> None:
        self.is_over = settings.is_trial or settings.is_light or settings.is_stopped_by_steps
        self.has_exported = False
        self._identity = identity
        self._file = file
        self._path = settings.folder / File.STALL_TRACE.of(identity.rank)
        self._is_one_node = identity.num_nodes in (None, 1)
        self._watch = StallWatch()
        self._since: float | None = None
        self._plan: StallPlan | None = None
        self._window: TraceWindow | None = None
        self._recovery = 0
        self._following = 0  # number of the next step
        if not self.is_over:
            poll_ns = _POLL_NS if self._is_one_node else _POLL_ACROSS_NODES_NS
            self._plan_file = PlanFile(StallPlan, settings.state, identity, f"stall-{generation}", poll_ns=poll_ns)

    @property
    def is_exact(self) -> bool:
        """Whether a window is near or has just ended, so each step end must be reported at once."""
        is_near = self._plan is not None and self._following >= self._plan.near
        return (is_near and not self.is_over) or self._recovery > 0

    @property
    def is_tracing(self) -> bool:
        return self._window is not None and self._window.state is WindowState.TRACING

    def add(self, first: int, times_s: Sequence[float]) -> None:
        """Take the times of consecutive ordinary steps."""
        if self._identity.rank == 0 and not self.is_over and self._plan is None:
            self._watch.add(first, times_s)

    def advance(self, following: int, num_operators: int | None, *, stops_before: int | None) -> str:
        """Do the work that is due before step `following`, and return its kind. Called once the first trace is over."""
        self._following = following
        if self._recovery:
            self._recovery -= 1
            return StepKind.RECOVERY
        if self.is_over:
            return StepKind.ORDINARY
        if self._plan is None:
            self._decide(following, num_operators)
        plan = self._plan
        if plan is None:
            return StepKind.ORDINARY
        if self._window is not None:
            return self._advance_window(self._window, plan.start, following)
        if stops_before is not None and stops_before <= plan.start + plan.num_steps:
            self.is_over = True  # the job is stopped first
            return StepKind.ORDINARY
        if following == plan.start - 1:
            self._window = TraceWindow(self._path, plan.num_steps, None)
            self._window.prepare()
            return StepKind.PREPARE
        if following >= plan.start:  # announced too late for this rank
            self.is_over = True
        return StepKind.ORDINARY

    def _decide(self, following: int, num_operators: int | None) -> None:
        now = time.monotonic()
        self._since = self._since or now
        if now - self._since > _MAX_WATCH_S:
            self.is_over = True
            return
        if self._identity.rank:
            self._plan = self._plan_file.look(time.perf_counter_ns())
            return
        period = self._watch.period()
        if period is None:
            return
        if not _is_affordable(period, num_operators):
            self.is_over = True
            return
        due = period.next_from(following + self._num_notice_steps(period.step_s) + 2)
        near = due - 2 - ceil(_NEAR_S / max(period.step_s, 1e-6))
        self._plan = StallPlan(start=due - 1, num_steps=NUM_STEPS, near=near, due=due, period=period.steps)
        self._plan_file.publish(self._plan)

    def _num_notice_steps(self, step_s: float) -> int:
        if self._identity.world_size == 1:
            return 0
        return ceil((_NOTICE_S if self._is_one_node else _NOTICE_ACROSS_NODES_S) / max(step_s, 1e-6))

    def _advance_window(self, window: TraceWindow, start: int, following: int) -> str:
        if following == start:
            window.start(following)
            is_traced = window.state is WindowState.TRACING
        else:
            is_traced = window.next_step()
        if is_traced:
            return StepKind.TRACED
        self._end(window)
        self._recovery = NUM_RECOVERY_STEPS - 1
        return StepKind.RECOVERY

    def _end(self, window: TraceWindow) -> None:
        self.is_over = True
        try:
            window.stop()
        except Exception as error:  # noqa: BLE001 - the profiler's errors are not the job's
            LOG.error("the profiler")
            window.problem = f"torch.profiler failed: {error}"
        plan = self._plan
        assert plan is not None
        self._file.event(
            StepFileEvent.STALL_WINDOW,
            steps=window.steps,
            due=plan.due,
            period=plan.period,
            problem=window.problem,
        )
        self.has_exported = True

    def finish(self) -> None:
        """Close the window if it is open when the job ends."""
        if self._window is not None and not self.is_over:
            self._end(self._window)


def _is_affordable(period: StallPeriod, num_operators: int | None) -> bool:
    """Whether the trace of a stall stays short and small, if it runs as many operators per second as other steps."""
    if period.stall_s > MAX_STALL_S:
        return False
    operators_per_s = (num_operators or 1000) / max(period.step_s, 1e-6)
    traced_s = period.stall_s + NUM_STEPS * period.step_s
    return operators_per_s * traced_s * EVENTS_PER_OPERATOR <= MAX_EVENTS
