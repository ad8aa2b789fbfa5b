"""The recorder of one rank: it takes the events of the training loop and passes finished steps to `RankOutput`.

It exists from the first event of a process until the process ends. Steps are numbered from 0; a step is the time
between two step ends that `StepDetector` finds on the thread that trains. The recorder does its own heavy work
(counting FLOPs, tracing, writing the trace) between steps and in steps that it marks.

A hook only records an event. Training evicts the recorder's code and data from the CPU caches, so processing an event
in its hook would cost several times as much as in a separate loop. The notes of half a second are processed together,
at an event that can end a step. While something has to be done between two particular steps, notes are processed after
each event.
"""

from __future__ import annotations

import json
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from flatout.inside.checks.gradients import GradientRecorder
from flatout.inside.checks.model_outputs import ModelOutputRecorder
from flatout.inside.log import LOG
from flatout.inside.protocol import MODEL_SPAN, StepFileEvent, StepKind
from flatout.inside.recording.batches import Count, count_batch, count_shape
from flatout.inside.recording.forward_calls import Call
from flatout.inside.recording.loader_queue import num_ready
from flatout.inside.recording.losses import Losses, Scalar
from flatout.inside.recording.other_models import OTHER_MODELS
from flatout.inside.recording.rank_output import RankOutput
from flatout.inside.recording.spells import CHECKPOINT, COLLECTION, LOADER_START, Spells
from flatout.inside.recording.steady_state import NoteKinds, steady_rows
from flatout.inside.recording.step_detector import StepDetector
from flatout.inside.recording.step_rows import NO_CALL, CallFields, Step, json_number, memory_columns
from flatout.inside.settings import RecorderSettings

_now = time.perf_counter_ns
_thread = threading.get_ident
_MAX_BATCHES = 512  # batch counts kept for one step
_MAX_NOTES = 4096  # limits the notes of a long evaluation, in which no optimizer steps
_TOGETHER_NS, _TOGETHER_STEADY_NS = 50_000_000, 500_000_000  # how long notes are kept before they are processed
# After the first steps, only every eighth loss of short steps is kept, because keeping a loss is a third of the cost of
# a step's hooks. A trial compares losses, so it keeps all of them.
_NUM_ALL_LOSSES, _LOSS_EVERY, _SHORT_NS = 64, 8, 50_000_000
_Tensor = torch.Tensor


class StepRecorder:
    """Records the steps of one rank. The hooks call its methods; `forget` and `finish` end it."""

    def __init__(
        self, settings: RecorderSettings, leave: Callable[[], None], *, between_steps: Callable[[], None] = lambda: None
    ) -> None:
        """Set callbacks: `leave` is called once no more events are needed, `between_steps` from time to time."""
        self.settings = settings
        self.is_stopped = False
        self._leave = leave
        self._between_steps = between_steps
        self.losses = Losses()
        self.gradients = GradientRecorder(settings.warmup) if settings.has_gradients else None
        self.model_outputs = ModelOutputRecorder() if settings.has_gradients else None
        self._pid = os.getpid()
        self._detector = StepDetector()
        self._output = RankOutput(settings, self.losses, self.gradients)
        self._thread = _thread()  # the thread that trains
        # Events noted by the hooks: the method that processes the event, and its arguments.
        self._notes: list[tuple[Any, ...]] = []
        self._note = self._notes.append
        self._busy = threading.Lock()  # held while notes are processed
        self._next_work_ns = 0
        self._ended: list[Step] = []  # finished steps that are not written yet
        self._step = 0
        self._first_ns = self._start_ns = 0  # 0: no event yet
        self._kind = StepKind.FIRST
        self._is_loading = False
        self._loader_ns = 0
        self._spells = Spells()
        self._is_saving = False
        self._num_batches = 0
        self._counts: list[Count] = []
        self._is_by_optimizer = False  # an optimizer is in use, so batches and backward passes do not end steps
        self._has_scaler = False
        self._num_backward = 0
        self._is_skipped: bool | None = None
        self._optimizers: list[weakref.ref[Any]] = []
        self._known: set[int] = set()  # the ids of the optimizers
        self._keeps_loss = True  # whether the loss of the current step is kept
        self._thins_losses = False
        self._loss_turn = 0
        self._is_steady = False  # `steady_rows` can be tried
        self._call = NO_CALL  # the calls of the model within the step
        self._model_span: Any = None  # of the last call in a trace; None once the trace is over
        self._is_span_ended = True
        self._is_pooled = False  # several threads call the model: a step ends with the end of each call
        self._iterator: Callable[[], Any] = lambda: None  # of the last loader that gave its first batch

    # Events that the hooks report, on any thread. Only events on the thread that trains count.

    def load(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Return the loader's next batch and note how long it took. All in one call: calls cost more than this work."""
        if self._is_loading or _thread() != self._thread:
            return self._load_beside(original, iterator)
        self._is_loading = True
        began = _now()
        first = None
        is_first = not getattr(iterator, "_num_yielded", True)
        try:
            if not self._is_by_optimizer:
                self._asked(began)
            batch = original(iterator)
            if is_first:
                self._note((StepRecorder._on_spell, LOADER_START, began, _now(), False))
                self._iterator = weakref.ref(iterator)
            kind = type(batch)
            if kind is _Tensor:
                first = batch
            elif (kind is list or kind is tuple) and batch and type(batch[0]) is _Tensor:
                first = batch[0]
            if first is not None and not first.is_nested:
                self._note((StepRecorder._on_tensors, began, _now(), first.shape, first.dtype))
            else:
                self._note((StepRecorder._on_batch, began, _now(), _counted_batch(batch)))
        except BaseException:  # the end of the loader's batches, at which it stops its workers
            ended = _now()
            self._note((StepRecorder._on_batch, began, ended, None))
            self._note((StepRecorder._on_spell, LOADER_START, began, ended, False))
            raise
        finally:
            self._is_loading = False
        if len(self._notes) > _MAX_NOTES:
            self._process_early()
        return batch

    def _load_beside(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """Return a batch without timing it: from a loader inside another, or on a thread that does not train."""
        if _thread() == self._thread:
            return original(iterator)
        if (phases := self._output.phases) is not None:
            phases.has_loader_threads = True
        batch = original(iterator)
        self._note((StepRecorder._on_batch, 0, 0, _counted_batch(batch)))
        return batch

    def _process_early(self) -> None:
        """Process the notes because there are too many, even if no step has ended."""
        try:
            self._process(_now())
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("loader")

    def _asked(self, now: int) -> None:
        """Note that the script requests a batch from a loader, which can end a step."""
        try:
            self._note((StepRecorder._on_asked, now))
            if now >= self._next_work_ns:
                self._process(now)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("loader")

    def backward_begins(self, tensors: object) -> None:
        if _thread() != self._thread:
            return
        loss = self.losses.take(tensors) if self._keeps_loss else None
        if self._is_by_optimizer:
            self._note((StepRecorder._on_backward, 0, loss))
            if len(self._notes) > _MAX_NOTES:
                self._process_early()
            return
        now = _now()
        self._note((StepRecorder._on_backward, now, loss))
        if now >= self._next_work_ns:
            self._process(now)

    def forward_begins(self, model: int, count: Count) -> bool:
        """Note the call of a model without gradients; return whether the script may do nothing but infer."""
        if _thread() != self._thread:
            self._detector.num_calls_elsewhere += 1
            self._is_pooled = self._is_pooled or self._may_pool()
            return True
        if self._is_by_optimizer or self._num_backward or self._detector.is_training:
            self.model_outputs = None
            return False
        if self._is_pooled:
            return True
        now = _now()
        self._note((StepRecorder._on_forward, now, model, count))
        if now >= self._next_work_ns:
            self._process(now)
        if self._output.phases is not None and self._output.phases.is_tracing:
            OTHER_MODELS.install()
            self._begin_span()
        elif self._model_span is not None:
            self._model_span = None
            OTHER_MODELS.remove()
        return True

    def _may_pool(self) -> bool:
        """Whether the steps may be the calls of all threads from now on: nothing is measured on one thread alone."""
        if not self._detector.counts_forward or self._is_by_optimizer or self._num_backward:
            return False
        return self._output.leave_one_thread()

    def _begin_span(self) -> None:
        """Mark the call in the trace; a call that raised an error has left its mark open."""
        self._end_span()
        self._model_span = torch.autograd.profiler.record_function(MODEL_SPAN)
        self._model_span.__enter__()
        self._is_span_ended = False

    def _end_span(self) -> None:
        if self._model_span is not None and not self._is_span_ended:
            self._is_span_ended = True
            self._model_span.__exit__(None, None, None)

    def forward_ended(self, call: Call) -> None:
        """Note the end of a call of a model without gradients."""
        if self._is_pooled:
            self._note((StepRecorder._on_pooled_call, call))
            if call.ended_ns >= self._next_work_ns:
                self._process(call.ended_ns)
        elif _thread() == self._thread:
            self._end_span()
            self._note((StepRecorder._on_call_ended, call))

    def loss_scaled(self, scaled: object, unscaled: object) -> None:
        """Note that a GradScaler has scaled the loss `unscaled` to `scaled`."""
        self._has_scaler = True
        self.losses.scaled(scaled, unscaled)

    def optimizer_stepped(self, optimizer: object, *, is_skipped: bool | None) -> None:
        """Note that an optimizer has stepped, or that a GradScaler has skipped its step."""
        now = _now()
        thread = _thread()
        name = id(optimizer)
        found_inf = self.losses.take_flag(optimizer) if self._has_scaler else None
        self._note((StepRecorder._on_optimizer, now, thread, name, is_skipped, found_inf))
        if self._thins_losses:
            self._loss_turn = (self._loss_turn + 1) % _LOSS_EVERY
            self._keeps_loss = not self._loss_turn
        if name not in self._known:
            self._known.add(name)
            self._optimizers.append(weakref.ref(optimizer, lambda _: self._optimizer_is_gone(name)))
        elif now < self._next_work_ns and thread == self._thread:
            return
        self._process(now)

    def _optimizer_is_gone(self, name: int) -> None:
        """Forget a deleted optimizer, because a new optimizer can get the same address."""
        self._known.discard(name)
        self._note((StepRecorder._on_optimizer_gone, name))

    def checkpoint_begins(self) -> tuple[int, Any] | None:
        """Return the start of a checkpoint that the script begins to write; None if the checkpoint is not counted."""
        if self._is_saving or _thread() != self._thread:
            return None
        self._is_saving = True
        mark = None
        phases = self._output.phases
        if phases is not None and phases.is_tracing:
            mark = torch.autograd.profiler.record_function("flatout:checkpoint")
            mark.__enter__()
        return _now(), mark

    def checkpoint_ends(self, begun: tuple[int, Any]) -> None:
        self._is_saving = False
        began, mark = begun
        self.spell(CHECKPOINT, began, _now())
        if mark is not None:
            mark.__exit__(None, None, None)

    def spell(self, kind: int, began: int, ended: int, *, is_full: bool = False) -> None:
        """Record a period of one of the kinds in `spells`, on the training thread.

        A garbage collection counts on any thread.
        """
        if kind == COLLECTION or _thread() == self._thread:
            self._note((StepRecorder._on_spell, kind, began, ended, is_full))

    def evaluation_begins(self, now: int) -> None:
        if _thread() == self._thread:
            self._note((StepRecorder._on_evaluation_begins, now))

    def evaluation_ends(self, now: int) -> None:
        if _thread() == self._thread:
            self._note((StepRecorder._on_evaluation_ends, now))

    # Processing of the notes, in the order of the events.

    def _process(self, now: int) -> None:
        """Process the notes and, if the last event ended a step, do the work that is due between two steps."""
        if not self._busy.acquire(blocking=False):
            return
        try:
            if self._is_steady and self._take_steady_steps(now):
                return
            is_end = self._take_notes()
            if is_end and not self.is_stopped:
                self._work(now)
        finally:
            self._busy.release()

    def _take_notes(self) -> bool:
        """Process the notes one by one; return whether the last event ended a step."""
        notes = self._notes[:]
        del self._notes[: len(notes)]
        is_end = False
        for take, *arguments in notes:
            is_end = take(self, *arguments)
        return is_end

    def _take_steady_steps(self, now: int) -> bool:
        """Process the notes and write their rows in one pass; return False if not all of the steps are ordinary."""
        file = self._output.file
        if file is None or len(self._known) != 1:
            return False
        has_begun = self._num_batches or self._num_backward or self._ended or not self._spells.is_empty
        if has_begun:
            return False
        notes = self._notes[:]
        steady = steady_rows(
            notes,
            _KINDS,
            thread=self._thread,
            optimizer=next(iter(self._known)),
            number=self._step,
            start=self._start_ns,
            memory=memory_columns(self._output.memory.read(now)),
            loss_of=self._loss_of,
        )
        if steady is None:
            return False
        del self._notes[: len(notes)]  # another thread may have added notes since
        took_ns = steady.start - self._start_ns
        phases = self._output.phases
        assert phases is not None
        phases.add_steady(self._step, [time_ns / 1e9 for time_ns in steady.times_ns])
        self._step += len(steady.rows)
        self._start_ns = steady.start
        file.lines(steady.rows)
        self._kind = phases.advance_stall(self._step - 1)
        self._end_work(now, took_ns=took_ns, num_steps=len(steady.rows))
        if self._kind:
            self._start_ns = _now()  # the recorder's own work is not part of a step
        return True

    def _loss_of(self, step: int, scalar: Scalar) -> str:
        self.losses.add(scalar)
        loss = self.losses.settle(step, self.losses.close_step()).loss
        return json.dumps(json_number(loss))

    # Each of these methods processes the note of one event and returns whether the event ended a step.

    def _on_asked(self, now: int) -> bool:
        if not self._start_ns:
            self._first_ns = self._start_ns = now
        if self._is_by_optimizer:
            return False
        closes = self._detector.batch()
        if self._detector.restarts:
            self._restart()
        if closes:
            self._close_step(now)
        return closes

    def _on_tensors(self, began: int, ended: int, shape: torch.Size, dtype: torch.dtype) -> bool:
        return self._on_batch(began, ended, count_shape(shape, dtype))

    def _on_batch(self, began: int, ended: int, count: Count | None) -> bool:
        """Add a batch and its loading time; `count` is None if the loader had no more batches."""
        self._loader_ns += ended - began
        if count is not None:
            self._num_batches += 1
            self._spells.load(began, ended)
            if self._num_batches > _MAX_BATCHES:
                del self._counts[0]
            self._counts.append(count)
        else:
            self._detector.no_batch()
            self._spells.loader_ended(ended)
        return False

    def _on_backward(self, now: int, loss: Scalar | None) -> bool:
        closes = False
        if not self._is_by_optimizer:
            if not self._start_ns:
                self._first_ns = self._start_ns = now
            closes = self._detector.backward()
            if self._detector.restarts:
                self._restart()
            if closes:
                self._close_step(now)
        self._num_backward += 1
        self._spells.backward()
        self.losses.add(loss)
        return closes

    def _on_forward(self, now: int, model: int, count: Count) -> bool:
        if not self._start_ns:
            self._first_ns = self._start_ns = now
        closes = self._detector.forward(model)
        if not self._detector.counts_forward:
            return False
        if closes:
            self._close_step(now)
        if closes or not self._num_batches:  # of the models of a step, the first has the step's batch
            self._num_batches = 1
            self._counts = [count]
        return closes

    def _on_call_ended(self, call: Call) -> bool:
        known = self._call.num_known_tokens
        self._call = CallFields(
            (self._call.model_ns or 0) + call.ended_ns - call.began_ns,
            call.num_known_tokens if known is None else known,
        )
        return False

    def _on_pooled_call(self, call: Call) -> bool:
        now = max(call.ended_ns, self._start_ns)
        if not self._start_ns:
            self._first_ns = self._start_ns = now
        closes = self._detector.forward(call.model)
        if not closes:
            return False
        self._call = CallFields(call.ended_ns - call.began_ns, call.num_known_tokens)
        self._num_batches, self._counts = 1, [call.counted]
        self._close_step(now)
        return True

    def _on_optimizer(self, now: int, thread: int, optimizer: int, is_skipped: bool | None, found_inf: Any) -> bool:
        if thread != self._thread:
            self._thread, self._is_loading = thread, False
            self._restart()
        if not self._start_ns:
            self._first_ns = self._start_ns = now
        if is_skipped is not None:
            self._is_skipped = is_skipped or bool(self._is_skipped)
        if found_inf is not None:
            self.losses.add_flag(found_inf)
        self._is_by_optimizer = True
        closes = self._detector.optimizer(optimizer)
        if self._detector.restarts:
            self._restart()
        if closes:
            self._close_step(now)
        return closes

    def _on_optimizer_gone(self, optimizer: int) -> bool:
        self._detector.optimizer_is_gone(optimizer)
        return False

    def _on_spell(self, kind: int, began: int, ended: int, is_full: bool) -> bool:
        self._spells.add(kind, began, ended)
        if is_full:
            self._spells.full_collection()
        return False

    def _on_evaluation_begins(self, now: int) -> bool:
        self._spells.evaluation_begins(now)
        return False

    def _on_evaluation_ends(self, now: int) -> bool:
        self._spells.evaluation_ends(now)
        return False

    # Steps.

    def _restart(self) -> None:
        """Restart at step 0: all steps so far belong to the first one. Not done once the ranks have agreed on steps."""
        output = self._output
        if output.phases is not None:
            if output.phases.is_decided and not output.phases.may_decide_again:
                return
            output.phases.restart()
        self._ended.clear()
        if output.file is not None:
            output.file.drop_held_rows()
            output.file.event(StepFileEvent.RESTART)
        self.losses.restart()
        self._thins_losses, self._keeps_loss, self._is_steady = False, True, False
        self._next_work_ns = 0
        self._step, self._kind, self._start_ns = 0, StepKind.FIRST, self._first_ns

    def _close_step(self, now: int) -> None:
        self._ended.append(
            Step(
                self._step,
                self._start_ns,
                now,
                self._loader_ns,
                self._spells.close(self._num_backward),
                self._num_batches,
                self._counts,
                self._num_backward,
                self._is_skipped,
                self._kind,
                self.losses.close_step(),
                self._call,
            )
        )
        self._call = NO_CALL
        self._step += 1
        self._loader_ns = self._num_batches = self._num_backward = 0
        self._counts = []
        self._is_skipped = None
        self._kind = StepKind.ORDINARY
        self._start_ns = now

    def _work(self, now: int) -> None:
        """Handle the steps that have ended: write them, then check the plan and follow it."""
        source = self._detector.source
        assert source is not None
        output = self._output
        if output.file is None and not output.claim(str(source), self._optimizers):
            self.is_stopped = True
            self._ended.clear()
            self._leave()
            return
        phases = output.phases
        assert phases is not None
        steps, self._ended = self._ended, []
        output.write(steps)
        for step in steps:
            phases.add(step.number, (step.end - step.start) / 1e9, step.kind)
        if not phases.is_decided:
            phases.add_ready_batches(num_ready(self._iterator()))
        self._kind = phases.advance(steps[-1].number, source, is_training=self._detector.is_training)
        if self.gradients is not None and self._is_by_optimizer and phases.is_decided:
            self.gradients.is_over = True
        if phases.has_exported:
            phases.has_exported = False
            output.write_losses()  # the export has already waited for the GPU
        self._end_work(now, took_ns=now - steps[0].start, num_steps=len(steps))
        if self._kind or steps[-1].kind:
            self._start_ns = _now()  # the recorder's own work is not part of a step

    def _end_work(self, now: int, *, took_ns: int, num_steps: int) -> None:
        """Choose how to note the next events, after `num_steps` steps that took `took_ns` in total."""
        output, phases = self._output, self._output.phases
        assert output.file is not None and phases is not None
        output.file.flush(now)
        self._between_steps()
        is_plain = phases.is_over and len(self._known) == 1
        are_short = took_ns < _SHORT_NS * num_steps
        may_thin = not self.settings.is_stopped_by_steps and self._step >= _NUM_ALL_LOSSES
        self._thins_losses = is_plain and may_thin and are_short
        if not self._thins_losses:
            self._keeps_loss = True
        self._is_steady = is_plain and self._is_by_optimizer and not phases.is_exact and not self._has_scaler
        if phases.is_exact:
            self._next_work_ns = 0
        else:
            self._next_work_ns = now + (_TOGETHER_STEADY_NS if phases.is_over else _TOGETHER_NS)

    # The end.

    def finish(self) -> None:
        """Write everything that is still buffered when the process ends, without waiting for an unresponsive GPU."""
        if self.is_stopped or self._pid != os.getpid():
            return
        try:
            self._take_notes()
        except Exception:  # noqa: BLE001 - the rest is still to be written
            LOG.error("finish")
        if self._output.file is None and not self._ended:
            return
        if self._output.file is None and not self._output.claim(str(self._detector.source), self._optimizers):
            return
        self.is_stopped = True
        outputs = None if self._detector.is_training else self.model_outputs
        self._output.finish(
            self._ended,
            num_steps=self._step,
            detector=self._detector,
            model_outputs=outputs,
            is_pooled=self._is_pooled,
        )

    def forget(self) -> None:
        """Stop without writing, in a forked child, because the recording belongs to the parent."""
        self.is_stopped = True
        if self._output.file is not None:
            self._output.file.forget()


_KINDS = NoteKinds(StepRecorder._on_tensors, StepRecorder._on_backward, StepRecorder._on_optimizer)


def _counted_batch(batch: object) -> Count:
    try:
        return count_batch(batch)
    except Exception:  # noqa: BLE001 - an error of ours is never the job's
        LOG.error("loader")
        return None, None
