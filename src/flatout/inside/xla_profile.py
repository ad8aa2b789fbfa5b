"""Record some steps of a JAX job with JAX's own profiler, while `flatout profile` runs it.

In: the environment, once `jax` was imported. Out: a profile of each process in the recording. A script that marks its
steps with `StepTraceAnnotation` is recorded from one mark to another; any other script for some seconds after its last
compilation. Nothing here raises into the job, and a profile that the script itself starts ends ours.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from functools import wraps
from pathlib import Path
from typing import Any

from flatout.inside.log import LOG, guarded
from flatout.inside.protocol import File
from flatout.inside.settings import read_settings

WARM_UP_STEPS = 3  # before the first step that may be recorded, unless --warmup says it
QUIET_S = 1.0  # without a compilation, after which a script without marks is recorded
UNMARKED_S = 3.0  # of a script without marks
_LOOK_S = 0.1
_COMPILATION = "compile"


class XlaProfiler:
    """The profile of this process; the lock is held while it starts or stops."""

    def __init__(self, jax: Any, folder: Path, num_steps: int, warmup: int | None) -> None:
        self._jax = jax
        self._folder = folder
        self._num_steps = num_steps
        self._warmup = WARM_UP_STEPS if warmup is None else warmup
        self._waits_for_compilation = warmup is None
        self._lock = threading.RLock()
        self._num_marks = 0
        self._first_recorded: int | None = None  # the number of marks before the first recorded step
        self._last_compiled = -1  # the number of marks before the last step that compiled something
        self._compiled_at: float | None = None
        self._starting_thread: threading.Thread | None = None  # the one that starts our profile, not the script's
        self._is_recording = False
        self._is_over = False

    def hook(self) -> None:
        """Hook the marks of steps, compilations, and profiles that the script starts."""
        profiler = self._jax.profiler
        mark = profiler.StepTraceAnnotation
        create = mark.__init__

        @wraps(create)
        def created(annotation: Any, *args: Any, **kwargs: Any) -> None:
            self.next_step()  # before: a mark that exists when the profile begins is not in it
            create(annotation, *args, **kwargs)

        mark.__init__ = created
        self._jax.monitoring.register_event_duration_secs_listener(self._compiled)
        inner = sys.modules.get("jax._src.profiler")
        for module in (profiler, inner):
            if module is not None:
                self._hook_start(module)
        atexit.register(self.stop)
        threading.Thread(target=self._watch, name="flatout-xla-profile", daemon=True).start()

    def _hook_start(self, module: Any) -> None:
        start = module.start_trace

        @wraps(start)
        def start_trace(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not self._starting_thread:
                self.leave()
            return start(*args, **kwargs)

        module.start_trace = start_trace

    @guarded
    def _compiled(self, event: str, duration: float, **_: Any) -> None:
        if _COMPILATION in event:
            self._last_compiled = self._num_marks
            self._compiled_at = time.monotonic()

    @guarded
    def next_step(self) -> None:
        """Start or stop at the beginning of a step, if it is time."""
        with self._lock:
            number = self._num_marks
            self._num_marks += 1
            if self._is_over:
                return
            if self._is_recording:
                if self._first_recorded is not None and number >= self._first_recorded + self._num_steps:
                    self.stop()
                return
            has_compiled = self._waits_for_compilation and self._last_compiled >= number
            if number >= self._warmup and not has_compiled:
                self._first_recorded = number
                self._start()

    def _start(self) -> None:
        if "torch" in sys.modules:  # only one library at a time can ask the GPU for its events
            self._is_over = True
            return
        rank = self._jax.process_index()
        folder = self._folder / f"rank{rank}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._starting_thread = threading.current_thread()
        try:
            self._jax.profiler.start_trace(str(folder))
            self._is_recording = True
        finally:
            self._starting_thread = None

    @guarded
    def stop(self) -> None:
        """End the recording, if there is one, and write it."""
        with self._lock:
            was_recording, self._is_recording, self._is_over = self._is_recording, False, True
            if was_recording:
                self._jax.profiler.stop_trace()

    @guarded
    def leave(self) -> None:
        """Let the script profile itself: only one profile can run in a process."""
        if self._is_recording:
            LOG.write("the script runs jax.profiler itself, so Flatout stops")
        self.stop()

    def _watch(self) -> None:
        """Record a script that marks no steps, once it compiles nothing more."""
        while not self._is_over and self._num_marks == 0 and not LOG.is_silenced:
            time.sleep(_LOOK_S)
            compiled_at = self._compiled_at
            if compiled_at is not None and time.monotonic() - compiled_at > QUIET_S:
                self._record_unmarked()
                return

    @guarded
    def _record_unmarked(self) -> None:
        with self._lock:
            if self._is_over or self._num_marks:
                return
            self._start()
        end = time.monotonic() + UNMARKED_S
        while time.monotonic() < end and not self._is_over:
            time.sleep(_LOOK_S)
        self.stop()


@guarded
def install(jax: Any) -> None:
    """Hook JAX in this process, if it is to be recorded with a trace."""
    settings = read_settings(os.environ)
    if settings is None or settings.is_light or settings.is_trial:
        return
    LOG.folder = settings.recording
    XlaProfiler(jax, settings.recording / File.XLA, settings.num_steps, settings.warmup).hook()
