"""What the recorder does between which steps: warm-up, untraced steps, the FLOPs step, the trace window, the rest.

In: each step's end. Out: the kind of the next step ("" for an ordinary one), and events in the step file.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import asdict
from typing import Any

from flatout.inside.checks.data_check import check_data
from flatout.inside.identity import Identity
from flatout.inside.log import LOG, guarded
from flatout.inside.phases.consensus import NUM_RECOVERY_STEPS, NUM_UNTRACED_STEPS, TracePlan, TracePlanFile, make_plan
from flatout.inside.phases.end_rank import end_now
from flatout.inside.phases.facts import FactsCollector
from flatout.inside.phases.flops import FlopsStep
from flatout.inside.phases.stop import StopCondition
from flatout.inside.phases.trace_window import TraceWindow, WindowState
from flatout.inside.phases.warmup import WarmupDetector
from flatout.inside.protocol import File, StepFileEvent, StepKind
from flatout.inside.recording.step_detector import StepSource
from flatout.inside.recording.step_file import StepFile
from flatout.inside.settings import RecorderSettings

_MIN_STEPS_BEFORE_LOOKING = 3


class Phases:
    def __init__(self, settings: RecorderSettings, identity: Identity, file: StepFile) -> None:
        self._settings = settings
        self._identity = identity
        self._file = file
        self._generation = 0
        self._source: StepSource | None = None
        self._num_operators: int | None = None
        self.has_exported = False  # a trace was just written
        self.optimizers: list[weakref.ref[Any]] = []
        self._begin_again()

    def _begin_again(self) -> None:
        self._warmup = WarmupDetector(warmup=self._settings.warmup)
        self._plan_file = TracePlanFile(self._settings.state, self._identity, self._generation)
        self._stop_condition = StopCondition(self._settings, self._identity, self._generation)
        self._plan: TracePlan | None = None
        self._flops: FlopsStep | None = None
        self._window: TraceWindow | None = None
        self.is_over = False
        self._recovery = 0
        self._facts = FactsCollector() if self._settings.has_facts else None

    @property
    def is_exact(self) -> bool:
        """Something is to be done between two certain steps: each step's end must be told at once."""
        if self._stop_condition.needs_each_step:
            return True
        if self._plan is None:
            return self._settings.warmup is not None
        return not self.is_over or self._recovery > 0

    @property
    def is_tracing(self) -> bool:
        return self._window is not None and self._window.state is WindowState.TRACING

    @property
    def is_decided(self) -> bool:
        return self._plan is not None

    @property
    def may_decide_again(self) -> bool:
        """Steps were counted by batches, and now turn out to be an evaluation before the training."""
        return self._source not in (None, StepSource.OPTIMIZER) and (self._plan is None or self.is_over)

    def restart(self) -> None:
        if self._plan is not None:
            self._generation += 1
        self._begin_again()

    def add(self, step: int, step_s: float) -> None:
        """Step number `step` took `step_s`."""
        if self._plan is None and step > 0:
            self._warmup.add(step_s)

    def advance(self, step: int, source: StepSource, *, is_training: bool) -> str:
        """Step number `step` has just ended: do what is due before the next one; that one's kind."""
        if self._stop_condition.is_asked:
            self._stop_condition.look(step + 1, self._warmup.step_s)
            if self._stop_condition.is_due(step + 1):
                self._stop(step)
        if self.is_over:
            if self._recovery:
                self._recovery -= 1
                return StepKind.RECOVERY
            return StepKind.ORDINARY
        plan = self._plan
        if plan is None:
            self._source = source
            if self._facts is not None and self._settings.is_trial:
                guarded(self._facts.look_at_loaders)()
            self._decide(step, source, is_training)
            return StepKind.ORDINARY
        began = time.perf_counter_ns()
        kind = self._carry_out(plan, step, step + 1)
        if kind in (StepKind.TRACED, StepKind.PREPARE) or self.has_exported:
            self._file.event(StepFileEvent.RECORDER, before_step=step + 1, cost_ns=time.perf_counter_ns() - began)
        return kind

    def _decide(self, step: int, source: StepSource, is_training: bool) -> None:
        if self._identity.rank != 0:
            plan = self._plan_file.look(time.perf_counter_ns()) if step >= _MIN_STEPS_BEFORE_LOOKING else None
        elif self._warmup.is_settled(source, is_training=is_training):
            plan = make_plan(
                settled=step + 1,
                step_s=self._warmup.step_s,
                num_steps=self._settings.num_steps,
                is_light=self._settings.is_light,
                identity=self._identity,
                is_short=self._settings.warmup is not None and self._settings.warmup < NUM_UNTRACED_STEPS,
            )
            self._plan_file.publish(plan)
        else:
            plan = None
        if plan is None:
            return
        self._plan = plan
        self._file.event(StepFileEvent.PLAN, generation=self._generation, **asdict(plan))
        self._stop_condition.agreed(plan)
        if step + 1 > plan.flops_step:
            self.is_over = True
            self._file.event(
                StepFileEvent.WINDOW, steps=[], problem="this rank read the plan after its first step: it was ahead"
            )

    def _carry_out(self, plan: TracePlan, ended: int, following: int) -> str:
        """What the plan says between the two steps; the kind of the one that follows."""
        window_begins = None if plan.start is None else plan.start - 1
        if self._window is not None:
            if following == plan.start:
                self._window.start(following)
                return StepKind.TRACED if self._window.state is WindowState.TRACING else self._end_window()
            return StepKind.TRACED if self._window.next_step() else self._end_window()
        if following == plan.flops_step and not self._settings.is_trial:
            if self._facts is not None:
                guarded(self._facts.watch)()
            self._flops = FlopsStep()
            self._flops.begin([one for reference in self.optimizers if (one := reference()) is not None])
            return StepKind.FLOPS if self._flops.reason is None else StepKind.ORDINARY
        if ended == plan.flops_step and self._flops is not None:
            self._end_flops(self._flops)
        if window_begins is None:
            if ended >= plan.flops_step:
                self.is_over = True
                if self._settings.is_trial:
                    return StepKind.ORDINARY
                self._recovery = NUM_RECOVERY_STEPS - 1
                self._write_facts()
                return StepKind.RECOVERY
            return StepKind.ORDINARY
        if following == window_begins:
            self._window = TraceWindow(
                self._settings.folder / File.TRACE.of(self._identity.rank), plan.num_steps, self._num_operators
            )
            self._window.prepare()
            return StepKind.PREPARE
        return StepKind.RECOVERY if ended >= plan.flops_step else StepKind.ORDINARY

    def _end_flops(self, flops: FlopsStep) -> None:
        counted = flops.end()
        if counted is not None:
            by_type, self._num_operators = counted
            self._file.event(
                StepFileEvent.FLOPS, flops_by_type=by_type, num_operators=self._num_operators, problem=None
            )
        else:
            self._file.event(StepFileEvent.FLOPS, flops_by_type=None, num_operators=None, problem=flops.reason)

    def _end_window(self) -> str:
        window = self._window
        assert window is not None
        try:
            window.stop()
        except Exception as error:  # noqa: BLE001 - the profiler's errors are not the job's
            LOG.error("the profiler")
            window.problem = f"torch.profiler failed: {error}"
        self._file.event(StepFileEvent.WINDOW, steps=window.steps, problem=window.problem)
        self.has_exported = True
        self.is_over = True
        self._write_facts()
        self._recovery = NUM_RECOVERY_STEPS - 1
        return StepKind.RECOVERY

    def _write_facts(self) -> None:
        facts, self._facts = self._facts, None
        if facts is not None:
            optimizers = [one for reference in self.optimizers if (one := reference()) is not None]
            guarded(facts.write)(self._settings.recording, self._identity, optimizers)

    def _stop(self, step: int) -> None:
        """End the process after this step. Never returns."""
        self._file.event(StepFileEvent.STOP, after_step=step, reason=self._stop_condition.reason)
        self._write_facts()
        guarded(check_data)(self._settings.recording, self._identity)
        end_now(self._settings.state, self._identity)

    def finish(self) -> None:
        """The job ends; a window that is open is closed with what it has."""
        self._write_facts()
        if self._window is not None and not self.is_over:
            self._end_window()
