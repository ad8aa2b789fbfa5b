"""Count the steps of a JAX job in a trial of `flatout tune jax`, and end the job after enough of them.

In: the variable `FLATOUT_XLA_TRIAL`, a JSON object with `folder`, `steps`, `warmup` and `most_s`. Out: one file of JSON
lines for each process: what it runs on, the time of each mark (`jax.profiler.StepTraceAnnotation`), of each
compilation, and each loss that `flatout.callbacks.report_loss` reports. Steps count from the last compilation on.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from functools import wraps
from pathlib import Path
from typing import IO, Any

from flatout.inside.log import guarded
from flatout.inside.protocol import Variable

_COMPILATION = "backend_compile"


class XlaSteps:
    """The steps of this process."""

    def __init__(self, jax: Any, folder: Path, num_steps: int, warmup: int, most_s: float) -> None:
        self._jax = jax
        self._folder = folder
        self._num_steps = num_steps
        self._warmup = warmup
        self._ends_at = time.monotonic() + most_s
        self._file: IO[str] | None = None
        self._num_marks = 0
        self._last_compiled = 0
        self._begun_s = time.monotonic()

    def hook(self) -> None:
        mark = self._jax.profiler.StepTraceAnnotation
        create = mark.__init__

        @wraps(create)
        def created(annotation: Any, *args: Any, **kwargs: Any) -> None:
            self.next_step()
            create(annotation, *args, **kwargs)

        mark.__init__ = created
        self._jax.monitoring.register_event_duration_secs_listener(self._compiled)

    @guarded
    def next_step(self) -> None:
        """Write the mark; end the process once there were enough steps since the last compilation."""
        if self._file is None:
            self._open()
        first = max(self._last_compiled, self._warmup)
        counted = self._num_marks - first
        self._write({"mark": self._num_marks, "s": time.monotonic() - self._begun_s, "counted_from": first})
        if counted >= self._num_steps or time.monotonic() >= self._ends_at:
            self._write({"end": "enough" if counted >= self._num_steps else "time"})
            self._end()
        self._num_marks += 1

    @guarded
    def loss(self, value: float) -> None:
        if self._file is not None:
            self._write({"loss": _as_json(float(value)), "mark": self._num_marks - 1})

    @guarded
    def _compiled(self, event: str, duration: float, **_: Any) -> None:
        if _COMPILATION in event:
            self._last_compiled = self._num_marks + 1

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{self._jax.process_index()}.jsonl"
        self._file = open(path, "w", encoding="utf-8", opener=_private)  # noqa: SIM115 - open until the process ends
        facts = {
            "platform": self._jax.default_backend(),
            "devices": self._jax.device_count(),
            "processes": self._jax.process_count(),
            "jax": self._jax.__version__,
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }
        self._write({"facts": facts})

    def _write(self, line: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _end(self) -> None:
        """End the process at once: every process of the job ends at the same mark, and none waits for another."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


_STEPS: XlaSteps | None = None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def report_loss(value: float) -> None:
    """Report the loss of the current step; without a trial, it does nothing."""
    if _STEPS is not None:
        _STEPS.loss(value)


@guarded
def install(jax: Any) -> None:
    """Count the steps of this process, if it is a trial."""
    global _STEPS
    wanted = os.environ.get(Variable.XLA_TRIAL)
    if not wanted:
        return
    trial = json.loads(wanted)
    _STEPS = XlaSteps(jax, Path(trial["folder"]), trial["steps"], trial["warmup"], trial["most_s"])
    _STEPS.hook()


def _as_json(value: float) -> float | str:
    """Return a number that JSON has, or its name: a loss that is not finite must reach the gate."""
    return value if math.isfinite(value) else str(value)
