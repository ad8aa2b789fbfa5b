"""Write the files of one rank: its step file and, through `Phases`, its trace and facts.

In: finished steps, losses and gradients. Out: the files of this rank. They are created once the first step has ended.
The process that creates the step file is the rank; any other process with the same rank number is not recorded.
"""

from __future__ import annotations

import subprocess
import time
import weakref
from typing import Any

from flatout.inside.checks.gradients import GradientRecorder
from flatout.inside.checks.model_outputs import ModelOutputRecorder
from flatout.inside.identity import find_identity
from flatout.inside.log import LOG
from flatout.inside.phases.phases import Phases
from flatout.inside.protocol import NOT_RECORDED, StepFileEvent, StepKind
from flatout.inside.recording.losses import Losses
from flatout.inside.recording.memory import MemoryReader
from flatout.inside.recording.process_info import ended_by, is_gpu_done, process_info
from flatout.inside.recording.sampling import start_sampler
from flatout.inside.recording.step_detector import StepDetector, StepSource
from flatout.inside.recording.step_file import StepFile
from flatout.inside.recording.step_rows import Step, json_number, row_of
from flatout.inside.settings import RecorderSettings


class RankOutput:
    """The output of one rank; `file` and `phases` are None until this process is known to be the rank."""

    def __init__(self, settings: RecorderSettings, losses: Losses, gradients: GradientRecorder | None) -> None:
        self.file: StepFile | None = None
        self.phases: Phases | None = None
        self.memory = MemoryReader()
        self._settings = settings
        self._losses = losses
        self._gradients = gradients
        self._base_unix_ns = time.time_ns() - time.perf_counter_ns()
        self._is_of_many_threads = False

    def leave_one_thread(self) -> bool:
        """Measure nothing that only one thread shows from now on; return False while such a measurement runs."""
        self._is_of_many_threads = self.phases is None or self.phases.leave_one_thread()
        return self._is_of_many_threads

    def claim(self, source: str, optimizers: list[weakref.ref[Any]]) -> bool:
        """Claim the rank; return False if another process has claimed it, or if nothing can be written."""
        identity = find_identity()
        settings = self._settings
        LOG.folder = settings.recording
        try:
            if settings.attempt:
                settings.folder.mkdir(parents=True, exist_ok=True)
                settings.state.mkdir(parents=True, exist_ok=True)
            self.file = StepFile(settings.folder, identity.rank, process_info(identity, self._base_unix_ns, source))
            self.phases = Phases(settings, identity, self.file)
            self.phases.optimizers = optimizers
            if self._is_of_many_threads:
                self.phases.leave_one_thread()
        except FileExistsError:
            LOG.write(f"another process has already recorded rank {identity.rank}: {NOT_RECORDED}")
            return False
        except OSError as error:
            LOG.write(f"the recording cannot be written: {error}")
            return False
        try:
            start_sampler(settings.recording, identity)
        except (OSError, subprocess.SubprocessError) as error:
            LOG.write(f"the sampler could not be started: {error}")
        return True

    def write(self, steps: list[Step]) -> None:
        """Write the rows of steps; the memory counters are read for the last step."""
        assert self.file is not None
        last = steps[-1]
        memory = self.memory.read(last.end, is_forced=last.kind == StepKind.TRACED)
        rows = []
        for step in steps:
            loss, is_skipped = self._losses.settle(step.number, step.kept)
            rows.append(row_of(step, loss, is_skipped, memory if step is last else None))
        self.file.rows(rows)

    def write_losses(self) -> None:
        """Write the losses that are still on the GPU; this waits for the GPU."""
        fetched = self._losses.fetch()
        if fetched and self.file is not None:
            values: list[Any] = [[step, json_number(loss.loss), loss.is_skipped] for step, loss in fetched.items()]
            self.file.event(StepFileEvent.LOSSES, values=values)

    def finish(
        self,
        steps: list[Step],
        *,
        num_steps: int,
        detector: StepDetector,
        model_outputs: ModelOutputRecorder | None = None,
        is_pooled: bool = False,
    ) -> None:
        """Write everything that is still buffered and close the file, without waiting for an unresponsive GPU."""
        file, phases = self.file, self.phases
        assert file is not None and phases is not None
        gpu_is_done = is_gpu_done()
        try:
            if steps:
                self.write(steps)
            if gpu_is_done:
                phases.finish()
                self.write_losses()
                if self._gradients is not None:
                    self._gradients.write(self._settings.folder, file.rank)
                if model_outputs is not None:
                    model_outputs.write(self._settings.folder, file.rank)
        except Exception:  # noqa: BLE001 - the rest is still to be written
            LOG.error("finish")
        file.event(
            StepFileEvent.END,
            reason=ended_by(),
            num_steps=num_steps,
            num_optimizers=detector.num_optimizers,
            source=str(detector.source),
            is_pooled=is_pooled,
            num_calls_elsewhere=detector.num_calls_elsewhere if detector.source is StepSource.FORWARD else 0,
            gpu_is_done=gpu_is_done,
            num_lost_rows=file.num_lost,
            num_errors=LOG.num_errors,
        )
        file.close(time.perf_counter_ns())
