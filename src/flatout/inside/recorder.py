"""One rank's recorder: events of the training loop in, `rank{R}.steps.jsonl` and the trace out.

It lives from the first event of a process to its end. Steps are numbered from 0; a step is what lies between two ends
that `StepDetector` finds, on the thread that trains. The recorder's own heavy work (the FLOPs step, the trace window,
the export) lies between steps and in steps that are marked. What can wait is done for all steps of half a second
together: a step's own end costs a few microseconds.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

from flatout.inside.about import about_process, ended_by, is_gpu_done
from flatout.inside.batches import Count, count_batch
from flatout.inside.detect import StepDetector
from flatout.inside.identity import find_identity
from flatout.inside.log import LOG
from flatout.inside.losses import Kept, Losses
from flatout.inside.memory import MemoryReader
from flatout.inside.phases import Phases
from flatout.inside.settings import Settings
from flatout.inside.step_file import StepFile

_now = time.perf_counter_ns
_thread = threading.get_ident
_MAX_BATCHES = 512  # of one step
_TOGETHER_NS, _TOGETHER_AT_REST_NS = 50_000_000, 500_000_000


class _Step(NamedTuple):
    """A step that has ended, before it is written down."""

    number: int
    start: int
    end: int
    loader_ns: int
    num_batches: int
    counts: list[Count]  # of its last batches
    num_backward: int
    is_skipped: bool | None
    kind: str
    kept: Kept | None


class Recorder:
    def __init__(self, settings: Settings, leave: Callable[[], None]) -> None:
        """`leave` is called when nothing more is to be reported to it."""
        self.settings = settings
        self.is_stopped = False
        self._leave = leave
        self.losses = Losses()
        self._pid = os.getpid()
        self._detector = StepDetector()
        self._memory = MemoryReader()
        self._file: StepFile | None = None
        self._phases: Phases | None = None
        self._thread = _thread()
        self._base_unix_ns = time.time_ns() - _now()
        self._ended: list[tuple[Any, ...]] = []  # the fields of a _Step, made when there is time
        self._next_work_ns = 0
        self._step = 0
        self._first_ns = self._start_ns = 0  # 0: nothing has happened yet
        self._kind = "first"
        self._loader_start_ns = 0
        self._loader_depth = 0
        self._loader_ns = 0
        self._num_batches = 0
        self._counts: list[Count] = []
        self._is_by_optimizer = False  # batches and backward passes end no step
        self._has_scaler = False
        self._num_backward = 0
        self._is_skipped: bool | None = None
        self._optimizers: list[weakref.ref[Any]] = []

    # What the hooks report. Each may be called on any thread, and counts on the one that trains.

    def loader_begins(self) -> None:
        """A batch is asked for."""
        if _thread() != self._thread:
            return
        self._loader_depth += 1
        if self._loader_depth > 1:
            return
        self._loader_start_ns = now = _now()
        if not self._start_ns:
            self._first_ns = self._start_ns = now
        if self._is_by_optimizer:
            return
        closes = self._detector.batch()
        if self._detector.restarts:
            self._restart()
        if closes:
            self._close_step(now)

    def loader_ends(self, batch: object) -> None:
        """The batch, or None where the loader had none left."""
        if _thread() == self._thread:
            self._loader_depth -= 1
            if self._loader_depth > 0:
                return
            self._loader_ns += _now() - self._loader_start_ns
        if batch is not None:
            self._num_batches += 1
            if self._num_batches > _MAX_BATCHES:
                del self._counts[0]
            self._counts.append(count_batch(batch))

    def backward_begins(self, tensors: object) -> None:
        if _thread() != self._thread:
            return
        if not self._is_by_optimizer:
            now = _now()
            if not self._start_ns:
                self._first_ns = self._start_ns = now
            if self._detector.backward():
                self._close_step(now)
        self._num_backward += 1
        self.losses.backward(tensors)

    def loss_scaled(self, scaled: object, unscaled: object) -> None:
        """A GradScaler has made `scaled` of `unscaled`."""
        self._has_scaler = True
        self.losses.scaled(scaled, unscaled)

    def optimizer_stepped(self, optimizer: object, *, is_skipped: bool | None) -> None:
        """An optimizer has stepped, or a GradScaler has left its step out."""
        now = _now()
        if _thread() != self._thread:
            self._thread, self._loader_depth = _thread(), 0
            self._restart()
        if not self._start_ns:
            self._first_ns = self._start_ns = now
        if is_skipped is not None:
            self._is_skipped = is_skipped or bool(self._is_skipped)
        if self._has_scaler:
            self.losses.found_inf(getattr(optimizer, "found_inf", None))
        self._is_by_optimizer = True
        num_optimizers = self._detector.num_optimizers
        closes = self._detector.optimizer(id(optimizer))
        if self._detector.num_optimizers != num_optimizers:
            self._optimizers.append(weakref.ref(optimizer))
        if self._detector.restarts:
            self._restart()
        if closes:
            self._close_step(now)

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
            self._file.event("restart")
        self.losses.restart()
        self._next_work_ns = 0
        self._step, self._kind, self._start_ns = 0, "first", self._first_ns

    def _close_step(self, now: int) -> None:
        self._ended.append(
            (
                self._step,
                self._start_ns,
                now,
                self._loader_ns,
                self._num_batches,
                self._counts,
                self._num_backward,
                self._is_skipped,
                self._kind,
                self.losses.close_step(),
            )
        )
        self._step += 1
        self._loader_ns = self._num_batches = self._num_backward = 0
        self._counts = []
        self._is_skipped = None
        self._kind = ""
        self._start_ns = now
        phases = self._phases
        if now >= self._next_work_ns or (phases is not None and phases.is_exact):
            self._work(now)
            is_at_rest = self._phases is not None and self._phases.is_over
            self._next_work_ns = now + (_TOGETHER_AT_REST_NS if is_at_rest else _TOGETHER_NS)

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
        ended, self._ended = self._ended, []
        steps = [_Step(*step) for step in ended]
        for step in steps:
            self._write(file, step, is_last=step is steps[-1])
            phases.add(step.number, (step.end - step.start) / 1e9)
        self._kind = phases.advance(steps[-1].number, source, is_training=self._detector.is_training)
        if phases.has_exported:
            phases.has_exported = False
            self._write_losses()  # the export has waited for the GPU already
        file.flush(now)
        if self._kind or steps[-1].kind:
            self._start_ns = _now()  # what was done here is the recorder's, and no part of a step

    def _write(self, file: StepFile, step: _Step, *, is_last: bool) -> None:
        memory = self._memory.read(step.end, is_forced=step.kind == "traced") if is_last else None
        loss = self.losses.settle(step.number, step.kept)
        is_skipped = step.is_skipped
        if is_skipped is None and loss is not None:
            is_skipped = loss.is_skipped
        file.row(
            (
                step.number,
                step.start,
                step.end - step.start,
                step.loader_ns,
                step.num_batches,
                *_counted(step),
                step.num_backward,
                None if is_skipped is None else int(is_skipped),
                step.kind,
                None if loss is None else _json_number(loss.loss),
                None if memory is None else memory.peak_bytes,
                None if memory is None else memory.num_retries,
            )
        )

    def _claim(self) -> bool:
        """Become the rank: False where another process is it already."""
        identity = find_identity()
        LOG.folder = self.settings.recording
        header = about_process(identity, self._base_unix_ns, str(self._detector.source))
        try:
            self._file = StepFile(self.settings.recording, identity.rank, header)
            self._phases = Phases(self.settings, identity, self._file)
            self._phases.optimizers = self._optimizers
        except FileExistsError:
            LOG.write(f"another process has recorded rank {identity.rank} already: this one is not recorded")
            return False
        except OSError as error:
            LOG.write(f"the recording cannot be written to: {error}")
            return False
        return True

    # The end.

    def finish(self) -> None:
        """The process ends: what is still held is written. Nothing here waits for a GPU that does not answer."""
        if self.is_stopped or self._pid != os.getpid() or (self._file is None and not self._ended):
            return
        if self._file is None and not self._claim():
            return
        file, phases = self._file, self._phases
        assert file is not None and phases is not None
        self.is_stopped = True
        gpu_is_done = is_gpu_done()
        try:
            for step in self._ended:
                self._write(file, _Step(*step), is_last=step is self._ended[-1])
            if gpu_is_done:
                phases.finish()
                self._write_losses()
        except Exception:  # noqa: BLE001 - the rest is still to be written
            LOG.error("finish")
        file.event(
            "end",
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
            values: list[Any] = [[step, _json_number(one.loss), one.is_skipped] for step, one in fetched.items()]
            self._file.event("losses", values=values)


def _counted(step: _Step) -> Count:
    """Samples and tokens of the step: of as many of its last batches as it had backward passes.

    Batches before those belong to an evaluation; a trainer may fetch all batches of a step before its first pass.
    """
    batches = step.counts[-step.num_backward :] if step.num_backward else step.counts
    samples = [count for count, _ in batches if count is not None]
    tokens = [count for _, count in batches if count is not None]
    return sum(samples) if samples else None, sum(tokens) if tokens else None


def _json_number(value: float | None) -> float | str | None:
    """JSON has no infinities: they, and what is no number, become text."""
    return value if value is None or isfinite(value) else str(value)
