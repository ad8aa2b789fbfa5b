"""One rank's recorder: events of the training loop in, `rank{R}.steps.jsonl` and the trace out.

It lives from the first event of a process to its end. Steps are numbered from 0; a step is what lies between two ends
that `StepDetector` finds, on the thread that trains. The recorder's own heavy work (the FLOPs step, the trace window,
the export) lies between steps and in steps that are marked.

A hook only notes what happened: code and data that the training has pushed out of the processor's caches cost several
times as much there as in a loop of their own. The notes of half a second are then worked through together, at an
event that may end a step. While something is to be done between two certain steps, this is after each event.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch

from flatout.inside.checks.gradients import GradientRecorder
from flatout.inside.identity import find_identity
from flatout.inside.log import LOG
from flatout.inside.phases.phases import Phases
from flatout.inside.protocol import StepFileEvent, StepKind
from flatout.inside.recording.batches import Count, count_batch, count_shape
from flatout.inside.recording.losses import Losses, Taken
from flatout.inside.recording.memory import MemoryReader
from flatout.inside.recording.process_info import about_process, ended_by, is_gpu_done
from flatout.inside.recording.sampling import start_sampler
from flatout.inside.recording.steady_state import NoteKinds, steady_rows
from flatout.inside.recording.step_detector import StepDetector
from flatout.inside.recording.step_file import StepFile
from flatout.inside.recording.step_rows import Step, json_number, memory_columns, row_of
from flatout.inside.settings import RecorderSettings

_now = time.perf_counter_ns
_thread = threading.get_ident
_MAX_BATCHES = 512  # of one step
_MAX_NOTES = 4096  # in an evaluation no optimizer steps, for however long
_TOGETHER_NS, _TOGETHER_STEADY_NS = 50_000_000, 500_000_000
# Of short steps after so many, only every eighth loss is kept: keeping it is a third of what a step's hooks cost. In a
# trial, which compares them, each is.
_ALL_LOSSES, _LOSS_EVERY, _SHORT_NS = 64, 8, 50_000_000
_Tensor = torch.Tensor


class Recorder:
    def __init__(
        self, settings: RecorderSettings, leave: Callable[[], None], *, between_steps: Callable[[], None] = lambda: None
    ) -> None:
        """`leave` is called when nothing more is to be reported to it; `between_steps` now and then."""
        self.settings = settings
        self.is_stopped = False
        self._leave = leave
        self._between_steps = between_steps
        self.losses = Losses()
        self.gradients = GradientRecorder(settings.warmup) if settings.has_gradients else None
        self._pid = os.getpid()
        self._detector = StepDetector()
        self._memory = MemoryReader()
        self._file: StepFile | None = None
        self._phases: Phases | None = None
        self._thread = _thread()
        self._base_unix_ns = time.time_ns() - _now()
        # What the hooks have noted: the method that takes it, and its arguments.
        self._notes: list[tuple[Any, ...]] = []
        self._note = self._notes.append
        self._busy = threading.Lock()  # held while notes are worked through
        self._next_work_ns = 0
        self._ended: list[Step] = []
        self._step = 0
        self._first_ns = self._start_ns = 0  # 0: nothing has happened yet
        self._kind = StepKind.FIRST
        self._is_loading = False
        self._loader_ns = 0
        self._checkpoint_ns = 0
        self._is_saving = False
        self._num_batches = 0
        self._counts: list[Count] = []
        self._is_by_optimizer = False  # batches and backward passes end no step
        self._has_scaler = False
        self._num_backward = 0
        self._is_skipped: bool | None = None
        self._optimizers: list[weakref.ref[Any]] = []
        self._known: set[int] = set()  # the ids of the optimizers
        self._keeps_loss = True  # of the step that runs
        self._thins_losses = False
        self._loss_turn = 0
        self._is_steady = False

    # What the hooks report. Each may be called on any thread, and counts on the one that trains.

    def load(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """The loader's next batch, and a note of how long it took: one call, as each costs more than what it does."""
        if self._is_loading or _thread() != self._thread:
            return self._load_beside(original, iterator)
        self._is_loading = True
        began = _now()
        first = None
        try:
            if not self._is_by_optimizer:
                self._asked(began)
            batch = original(iterator)
            kind = type(batch)
            if kind is _Tensor:
                first = batch
            elif (kind is list or kind is tuple) and batch and type(batch[0]) is _Tensor:
                first = batch[0]
            if first is not None and not first.is_nested:
                self._note((Recorder._on_tensors, began, _now(), first.shape, first.dtype))
            else:
                self._note((Recorder._on_batch, began, _now(), _counted_batch(batch)))
        except BaseException:
            self._note((Recorder._on_batch, began, _now(), None))
            raise
        finally:
            self._is_loading = False
        if len(self._notes) > _MAX_NOTES:
            self._take_early()
        return batch

    def _load_beside(self, original: Callable[[Any], Any], iterator: Any) -> Any:
        """By a loader that reads from another loader: counted there. On another thread: nothing waits for it here."""
        if _thread() == self._thread:
            return original(iterator)
        batch = original(iterator)
        self._note((Recorder._on_batch, 0, 0, _counted_batch(batch)))
        return batch

    def _take_early(self) -> None:
        try:
            self._work_through(_now())
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("loader")

    def _asked(self, now: int) -> None:
        """A batch may end a step."""
        try:
            self._note((Recorder._on_asked, now))
            if now >= self._next_work_ns:
                self._work_through(now)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("loader")

    def backward_begins(self, tensors: object) -> None:
        if _thread() != self._thread:
            return
        loss = self.losses.take(tensors) if self._keeps_loss else None
        if self._is_by_optimizer:
            self._note((Recorder._on_backward, 0, loss))
            if len(self._notes) > _MAX_NOTES:
                self._take_early()
            return
        now = _now()
        self._note((Recorder._on_backward, now, loss))
        if now >= self._next_work_ns:
            self._work_through(now)

    def loss_scaled(self, scaled: object, unscaled: object) -> None:
        """A GradScaler has made `scaled` of `unscaled`."""
        self._has_scaler = True
        self.losses.scaled(scaled, unscaled)

    def optimizer_stepped(self, optimizer: object, *, is_skipped: bool | None) -> None:
        """An optimizer has stepped, or a GradScaler has left its step out."""
        now = _now()
        thread = _thread()
        name = id(optimizer)
        found_inf = self.losses.take_flag(optimizer) if self._has_scaler else None
        self._note((Recorder._on_optimizer, now, thread, name, is_skipped, found_inf))
        if self._thins_losses:
            self._loss_turn = (self._loss_turn + 1) % _LOSS_EVERY
            self._keeps_loss = not self._loss_turn
        if name not in self._known:
            self._known.add(name)
            self._optimizers.append(weakref.ref(optimizer, lambda _: self._optimizer_is_gone(name)))
        elif now < self._next_work_ns and thread == self._thread:
            return
        self._work_through(now)

    def _optimizer_is_gone(self, name: int) -> None:
        """The next optimizer may have the same address."""
        self._known.discard(name)
        self._note((Recorder._on_optimizer_gone, name))

    def checkpoint_begins(self) -> tuple[int, Any] | None:
        """The script writes a checkpoint, or starts to in the background; None where it is not to be counted."""
        if self._is_saving or _thread() != self._thread:
            return None
        self._is_saving = True
        mark = None
        if self._phases is not None and self._phases.is_tracing:
            mark = torch.autograd.profiler.record_function("flatout:checkpoint")
            mark.__enter__()
        return _now(), mark

    def checkpoint_ends(self, begun: tuple[int, Any]) -> None:
        self._is_saving = False
        began, mark = begun
        self._note((Recorder._on_checkpoint, _now() - began))
        if mark is not None:
            mark.__exit__(None, None, None)

    # What was noted, in the order of the events. True where it ended a step.

    def _work_through(self, now: int) -> None:
        """Take what was noted, and where its last event ended a step, do what is due between two steps."""
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
        notes = self._notes[:]
        del self._notes[: len(notes)]
        is_end = False
        for take, *arguments in notes:
            is_end = take(self, *arguments)
        return is_end

    def _take_steady_steps(self, now: int) -> bool:
        """Take and write the notes together, where they are of nothing but plain steps."""
        file = self._file
        if (
            file is None
            or len(self._known) != 1
            or self._num_batches
            or self._num_backward
            or self._checkpoint_ns
            or self._ended
        ):
            return False
        notes = self._notes[:]
        made = steady_rows(
            notes,
            _KINDS,
            thread=self._thread,
            optimizer=next(iter(self._known)),
            number=self._step,
            start=self._start_ns,
            memory=memory_columns(self._memory.read(now)),
            loss_of=self._loss_of,
        )
        if made is None:
            return False
        del self._notes[: len(notes)]  # another thread may have added some
        began, num_steps = self._start_ns, len(made.rows)
        self._step += num_steps
        self._start_ns = made.start
        file.lines(made.rows)
        self._end_work(now, file, took_ns=made.start - began, num_steps=num_steps)
        return True

    def _loss_of(self, step: int, taken: Taken) -> str:
        self.losses.add(taken)
        loss = self.losses.settle(step, self.losses.close_step()).loss
        return json.dumps(json_number(loss))

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
        """None: the loader had no more."""
        self._loader_ns += ended - began
        if count is not None:
            self._num_batches += 1
            if self._num_batches > _MAX_BATCHES:
                del self._counts[0]
            self._counts.append(count)
        else:
            self._detector.no_batch()
        return False

    def _on_backward(self, now: int, loss: Taken | None) -> bool:
        closes = False
        if not self._is_by_optimizer:
            if not self._start_ns:
                self._first_ns = self._start_ns = now
            closes = self._detector.backward()
            if closes:
                self._close_step(now)
        self._num_backward += 1
        self.losses.add(loss)
        return closes

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

    def _on_checkpoint(self, duration_ns: int) -> bool:
        self._checkpoint_ns += duration_ns
        return False

    # Steps.

    def _restart(self) -> None:
        """What was counted so far were parts of the first step, unless steps are already agreed upon."""
        phases = self._phases
        if phases is not None and phases.is_decided and not phases.may_decide_again:
            return
        self._ended.clear()
        if phases is not None:
            phases.restart()
        if self._file is not None:
            self._file.drop_held_rows()
            self._file.event(StepFileEvent.RESTART)
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
                self._checkpoint_ns,
                self._num_batches,
                self._counts,
                self._num_backward,
                self._is_skipped,
                self._kind,
                self.losses.close_step(),
            )
        )
        self._step += 1
        self._loader_ns = self._checkpoint_ns = self._num_batches = self._num_backward = 0
        self._counts = []
        self._is_skipped = None
        self._kind = StepKind.ORDINARY
        self._start_ns = now

    def _work(self, now: int) -> None:
        """All that is due for the steps that have ended: write them down, look at the plan, carry it out."""
        if self._file is None and not self._claim():
            self.is_stopped = True
            self._ended.clear()
            self._leave()
            return
        file, phases = self._file, self._phases
        assert file is not None and phases is not None
        source = self._detector.source
        assert source is not None
        steps, self._ended = self._ended, []
        self._write(file, steps)
        for step in steps:
            phases.add(step.number, (step.end - step.start) / 1e9)
        self._kind = phases.advance(steps[-1].number, source, is_training=self._detector.is_training)
        if self.gradients is not None and self._is_by_optimizer and phases.is_decided:
            self.gradients.is_over = True
        if phases.has_exported:
            phases.has_exported = False
            self._write_losses()  # the export has waited for the GPU already
        is_special = bool(self._kind or steps[-1].kind)
        self._end_work(now, file, took_ns=now - steps[0].start, num_steps=len(steps), is_special=is_special)

    def _end_work(self, now: int, file: StepFile, *, took_ns: int, num_steps: int, is_special: bool = False) -> None:
        phases = self._phases
        assert phases is not None
        file.flush(now)
        self._between_steps()
        if is_special:
            self._start_ns = _now()  # what was done here is the recorder's, and no part of a step
        is_alone = phases.is_over and len(self._known) == 1
        self._thins_losses = (
            is_alone
            and self.settings.stop_after is None
            and self._step >= _ALL_LOSSES
            and took_ns < _SHORT_NS * num_steps
        )
        self._keeps_loss = self._keeps_loss or not self._thins_losses
        self._is_steady = is_alone and self._is_by_optimizer and not phases.is_exact and not self._has_scaler
        together = _TOGETHER_STEADY_NS if phases.is_over else _TOGETHER_NS
        self._next_work_ns = 0 if phases.is_exact else now + together

    def _write(self, file: StepFile, steps: list[Step]) -> None:
        last = steps[-1]
        memory = self._memory.read(last.end, is_forced=last.kind == StepKind.TRACED)
        rows = []
        for step in steps:
            loss, is_skipped = self.losses.settle(step.number, step.kept)
            rows.append(row_of(step, loss, is_skipped, memory if step is last else None))
        file.rows(rows)

    def _claim(self) -> bool:
        """Become the rank: False where another process is it already."""
        identity = find_identity()
        LOG.folder = self.settings.recording
        header = about_process(identity, self._base_unix_ns, str(self._detector.source))
        try:
            if self.settings.attempt:
                self.settings.folder.mkdir(parents=True, exist_ok=True)
                self.settings.state.mkdir(parents=True, exist_ok=True)
            self._file = StepFile(self.settings.folder, identity.rank, header)
            self._phases = Phases(self.settings, identity, self._file)
            self._phases.optimizers = self._optimizers
        except FileExistsError:
            LOG.write(f"another process has recorded rank {identity.rank} already: this one is not recorded")
            return False
        except OSError as error:
            LOG.write(f"the recording cannot be written to: {error}")
            return False
        try:
            start_sampler(self.settings.recording, identity)
        except (OSError, subprocess.SubprocessError) as error:
            LOG.write(f"the sampler could not be started: {error}")
        return True

    # The end.

    def finish(self) -> None:
        """The process ends: what is still held is written. Nothing here waits for a GPU that does not answer."""
        if self.is_stopped or self._pid != os.getpid():
            return
        try:
            self._take_notes()
        except Exception:  # noqa: BLE001 - the rest is still to be written
            LOG.error("finish")
        if self._file is None and not self._ended:
            return
        if self._file is None and not self._claim():
            return
        file, phases = self._file, self._phases
        assert file is not None and phases is not None
        self.is_stopped = True
        gpu_is_done = is_gpu_done()
        try:
            if self._ended:
                self._write(file, self._ended)
            if gpu_is_done:
                phases.finish()
                self._write_losses()
                if self.gradients is not None:
                    self.gradients.write(self.settings.folder, file.rank)
        except Exception:  # noqa: BLE001 - the rest is still to be written
            LOG.error("finish")
        file.event(
            StepFileEvent.END,
            reason=ended_by(),
            num_steps=self._step,
            num_optimizers=self._detector.num_optimizers,
            source=str(self._detector.source),
            gpu_is_done=gpu_is_done,
            num_lost_rows=file.num_lost,
            num_errors=LOG.num_errors,
        )
        file.close(_now())

    def forget(self) -> None:
        """In a forked child: the recording is the parent's."""
        self.is_stopped = True
        if self._file is not None:
            self._file.forget()

    def _write_losses(self) -> None:
        fetched = self.losses.fetch()
        if fetched and self._file is not None:
            values: list[Any] = [[step, json_number(one.loss), one.is_skipped] for step, one in fetched.items()]
            self._file.event(StepFileEvent.LOSSES, values=values)


_KINDS = NoteKinds(Recorder._on_tensors, Recorder._on_backward, Recorder._on_optimizer)


def _counted_batch(batch: object) -> Count:
    try:
        return count_batch(batch)
    except Exception:  # noqa: BLE001 - an error of ours is never the job's
        LOG.error("loader")
        return None, None
