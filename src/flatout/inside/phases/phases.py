"""Run the phases of the recorder: warm-up, untraced steps, the FLOPs step, the trace window, the remaining steps.

In the remaining steps, a second window can follow, see `stall_window`.

In: the end of each step. Out: the kind of the next step, and events in the step file. All ranks go through the same
phases at the same steps, because they follow the plan from `consensus`.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from flatout.inside.blocks.block_run import BLOCKS, BlockRun
from flatout.inside.checks.data_check import check_data
from flatout.inside.identity import Identity
from flatout.inside.log import LOG, guarded
from flatout.inside.phases.consensus import (
    NUM_RECOVERY_STEPS,
    NUM_UNTRACED_STEPS,
    PlanFile,
    TracePlan,
    make_plan,
    num_untraced_steps,
)
from flatout.inside.phases.end_rank import end_now
from flatout.inside.phases.facts import FactsCollector
from flatout.inside.phases.flops import FlopsStep
from flatout.inside.phases.stall_window import StallWindow
from flatout.inside.phases.stop import StopCondition
from flatout.inside.phases.trace_window import TraceWindow, WindowState
from flatout.inside.phases.warmup import HOPELESS_STEPS, WarmupDetector
from flatout.inside.protocol import File, StepFileEvent, StepKind, StopReason
from flatout.inside.recording.start_times import START_TIMES, compilation_s
from flatout.inside.recording.step_detector import StepSource
from flatout.inside.recording.step_file import StepFile
from flatout.inside.settings import RecorderSettings

_MIN_STEPS_BEFORE_LOOKING = 3


class Phases:
    """The phases of one rank, from its first step to the end of its process."""

    def __init__(self, settings: RecorderSettings, identity: Identity, file: StepFile) -> None:
        self._settings = settings
        self._identity = identity
        self._file = file
        self._generation = 0
        self._source: StepSource | None = None
        self._num_operators: int | None = None
        self.has_exported = False  # a trace was just written
        self.has_loader_threads = False  # a thread that does not train loads batches
        self.optimizers: list[weakref.ref[Any]] = []
        self._is_of_many_threads = False  # the FLOPs and the trace of one thread would not be those of a step
        self._begin_again()

    def _begin_again(self) -> None:
        self._warmup = WarmupDetector(warmup=self._settings.warmup)
        self._plan_file = PlanFile(TracePlan, self._settings.state, self._identity, f"plan-{self._generation}")
        self._stop_condition = StopCondition(self._settings, self._identity, self._generation)
        self._plan: TracePlan | None = None
        self._flops: FlopsStep | None = None
        self._window: TraceWindow | None = None
        self._stall = StallWindow(self._settings, self._identity, self._file, self._generation)
        self.is_over = False
        self._recovery = 0
        self._facts = FactsCollector() if self._settings.has_facts else None
        # Seconds that torch had compiled after each of the last steps, and before them.
        self._compiled_s: deque[float | None] = deque(maxlen=HOPELESS_STEPS + 1)
        self._blocks: BlockRun | None = None
        if BLOCKS.schedule is not None:
            self._blocks = BlockRun(self._settings, self._identity, self._file, self._generation)

    @property
    def is_exact(self) -> bool:
        """Whether something has to be done between two particular steps, so each step end must be reported at once."""
        if self._stop_condition.needs_each_step:
            return True
        if self._plan is None:
            return self._settings.warmup is not None
        if self._blocks is not None:
            return True
        return not self.is_over or self._recovery > 0 or self._stall.is_exact

    @property
    def is_tracing(self) -> bool:
        is_first = self._window is not None and self._window.state is WindowState.TRACING
        return is_first or self._stall.is_tracing

    def leave_one_thread(self) -> bool:
        """Count no FLOPs and trace nothing from now on; return False while this is done, on the thread that began."""
        has_begun = self._flops is not None or self._window is not None
        if (has_begun and not self.is_over) or self._stall.is_exact:
            return False
        self._is_of_many_threads = True
        if self._plan is not None:
            self._plan = replace(self._plan, start=None)
        return True

    @property
    def is_decided(self) -> bool:
        return self._plan is not None

    @property
    def may_decide_again(self) -> bool:
        """Whether the plan may be dropped: it was made for steps without an optimizer, and has been carried out.

        If an optimizer steps afterwards, those steps were an evaluation before the training.
        """
        has_no_optimizer = self._source not in (None, StepSource.OPTIMIZER)
        is_at_rest = self.is_over and not self._stall.is_exact
        return has_no_optimizer and (self._plan is None or is_at_rest)

    def restart(self) -> None:
        if self._plan is not None:
            self._generation += 1
        self._begin_again()

    def add(self, step: int, step_s: float, kind: str) -> None:
        """Add the time of a step."""
        if self._plan is None and step > 0:
            self._warmup.add(step_s)
        if self._plan is not None and not kind:
            self._stop_condition.count(step_s)
        if not kind:
            self._stall.add(step, (step_s,))

    def add_ready_batches(self, num_ready: int | None) -> None:
        """Add how many batches a loader has ready after the last step; None: unknown, or it has no workers."""
        self._warmup.add_ready(num_ready)

    def add_steady(self, first: int, times_s: Sequence[float]) -> None:
        """Add the times of consecutive ordinary steps after the trace, of which the first has number `first`.

        A trial that counts its steps has none, because it needs each step.
        """
        self._stall.add(first, times_s)

    def advance(self, step: int, source: StepSource, *, is_training: bool) -> str:
        """Do the work that is due after step number `step`, and return the kind of the next step."""
        self._stop_if_due(step)
        if self._blocks is not None and self._plan is not None:
            kind = self._blocks.advance(step)
            if self._blocks.is_over:
                self._stop(step, StopReason.BLOCKS)
            return kind
        if self.is_over:
            if self._recovery:
                self._recovery -= 1
                return StepKind.RECOVERY
            return self.advance_stall(step)
        plan = self._plan
        if plan is None:
            self._source = source
            if self._facts is not None:
                guarded(self._facts.look_at_loaders)()
            self._decide(step, source, is_training)
            if self._plan is not None:  # the steps of the warm-up may have shown that the trial is hopeless
                self._stop_if_due(step)
            return StepKind.ORDINARY
        began = time.perf_counter_ns()
        kind = self._follow(plan, step)
        if kind in (StepKind.TRACED, StepKind.PREPARE) or self.has_exported:
            self._file.event(StepFileEvent.RECORDER, before_step=step + 1, cost_ns=time.perf_counter_ns() - began)
        return kind

    def _stop_if_due(self, step: int) -> None:
        if not self._stop_condition.is_asked:
            return
        self._stop_condition.look(step + 1, self._warmup.step_s)
        if self._stop_condition.is_due(step + 1):
            self._stop(step, self._stop_condition.reason)

    def advance_stall(self, step: int) -> str:
        """Do the work of the second window that is due after step `step`, and return the kind of the next step."""
        if self._is_of_many_threads:
            return StepKind.ORDINARY
        began = time.perf_counter_ns()
        kind = self._stall.advance(step + 1, self._num_operators, stops_before=self._stop_condition.step)
        if self._stall.has_exported:
            self._stall.has_exported, self.has_exported = False, True
        if kind in (StepKind.TRACED, StepKind.PREPARE) or self.has_exported:
            self._file.event(StepFileEvent.RECORDER, before_step=step + 1, cost_ns=time.perf_counter_ns() - began)
        return kind

    def _decide(self, step: int, source: StepSource, is_training: bool) -> None:
        plan = self._make_plan(step, source, is_training) if self._identity.rank == 0 else self._read_plan(step)
        if plan is None:
            return
        self._plan = plan
        self._file.event(StepFileEvent.STARTED, **START_TIMES.fields())
        self._file.event(StepFileEvent.PLAN, generation=self._generation, **asdict(plan))
        self._stop_condition.agreed(plan)
        if self._blocks is not None:
            self._blocks.agree(plan, self._warmup.step_s)
        if step + 1 > plan.flops_step:
            self.is_over = True
            problem = "this rank read the plan after its first step: it was ahead"
            self._file.event(StepFileEvent.WINDOW, steps=[], problem=problem)

    def _make_plan(self, step: int, source: StepSource, is_training: bool) -> TracePlan | None:
        is_hopeless = self._is_hopeless(source)
        if not is_hopeless and not self._warmup.is_over(source, is_training=is_training):
            return None
        warmup = self._settings.warmup
        plan = make_plan(
            settled=step + 1 - (HOPELESS_STEPS if is_hopeless else 0),
            step_s=self._warmup.step_s,
            num_steps=self._settings.num_steps,
            is_light=self._settings.is_light or self._is_of_many_threads,
            identity=self._identity,
            is_short=warmup is not None and warmup < NUM_UNTRACED_STEPS,
            num_untraced=num_untraced_steps(self._settings.stop_rule, self._warmup.mean_s),
            num_stable=self._warmup.num_stable,
        )
        self._plan_file.publish(plan)
        if is_hopeless:  # the steps that say so are the ones that the trial counts
            for step_s in self._warmup.last_steps_s(HOPELESS_STEPS):
                self._stop_condition.count(step_s)
        return plan

    def _is_hopeless(self, source: StepSource) -> bool:
        """Whether the trial will be abandoned, so that it needs no more warm-up.

        Steps in which torch compiles show nothing: a change that compiles the model can need several of them.
        """
        rule = self._settings.stop_rule
        if rule is None or rule.abandon_step_s is None or source is not StepSource.OPTIMIZER:
            return False
        self._compiled_s.append(compilation_s())
        has_compiled = self._compiled_s[0] != self._compiled_s[-1]
        return self._settings.is_trial and not has_compiled and self._warmup.is_hopeless(rule.abandon_step_s)

    def _read_plan(self, step: int) -> TracePlan | None:
        if step < _MIN_STEPS_BEFORE_LOOKING:
            return None
        return self._plan_file.look(time.perf_counter_ns())

    def _follow(self, plan: TracePlan, ended: int) -> str:
        """Do the work that the plan schedules after step `ended`, and return the kind of the next step."""
        following = ended + 1
        if self._window is not None:
            return self._advance_window(self._window, plan, following)
        if following == plan.flops_step and not self._settings.is_trial and not self._is_of_many_threads:
            return self._begin_flops()
        if ended == plan.flops_step and self._flops is not None:
            self._end_flops(self._flops)
        if plan.start is None:
            return self._end_without_window() if ended >= plan.flops_step else StepKind.ORDINARY
        if following == plan.start - 1:
            return self._prepare_window(plan)
        return StepKind.RECOVERY if ended >= plan.flops_step else StepKind.ORDINARY

    def _begin_flops(self) -> str:
        if self._facts is not None:
            guarded(self._facts.watch)()
        self._flops = FlopsStep()
        self._flops.begin(self._live_optimizers())
        return StepKind.FLOPS if self._flops.reason is None else StepKind.ORDINARY

    def _end_flops(self, flops: FlopsStep) -> None:
        counted = flops.end()
        if counted is not None:
            by_type, self._num_operators = counted
            self._file.event(
                StepFileEvent.FLOPS, flops_by_type=by_type, num_operators=self._num_operators, problem=None
            )
        else:
            self._file.event(StepFileEvent.FLOPS, flops_by_type=None, num_operators=None, problem=flops.reason)

    def _end_without_window(self) -> str:
        self.is_over = True
        if self._is_of_many_threads and not self._settings.is_light:
            problem = "several threads call the model, and a trace would show one of them"
            self._file.event(StepFileEvent.WINDOW, steps=[], problem=problem)
        if self._settings.is_trial:
            return StepKind.ORDINARY
        self._recovery = NUM_RECOVERY_STEPS - 1
        self._write_facts()
        return StepKind.RECOVERY

    def _prepare_window(self, plan: TracePlan) -> str:
        path = self._settings.folder / File.TRACE.of(self._identity.rank)
        self._window = TraceWindow(
            path, plan.num_steps, self._num_operators, has_loader_threads=self.has_loader_threads
        )
        self._window.prepare()
        return StepKind.PREPARE

    def _advance_window(self, window: TraceWindow, plan: TracePlan, following: int) -> str:
        if following == plan.start:
            window.start(following)
            is_traced = window.state is WindowState.TRACING
        else:
            is_traced = window.next_step()
        return StepKind.TRACED if is_traced else self._end_window()

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
            guarded(facts.write)(self._settings.recording, self._identity, self._live_optimizers())

    def _live_optimizers(self) -> list[Any]:
        optimizers = (reference() for reference in self.optimizers)
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def _stop(self, step: int, reason: str) -> None:
        """End the process after this step. Never returns."""
        self._file.event(StepFileEvent.STOP, after_step=step, reason=reason)
        self._write_facts()
        guarded(check_data)(self._settings.recording, self._identity)
        end_now(self._settings.state, self._identity)

    def finish(self) -> None:
        """Close the trace window if it is open when the job ends, with the steps traced so far."""
        self._write_facts()
        if self._window is not None and not self.is_over:
            self._end_window()
        self._stall.finish()
