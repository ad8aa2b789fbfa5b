"""Run a training script, unmodified, and switch what watches it off and on in alternating blocks: for `gpu_watch.py`.

    flatout run -- python benchmarks/gpu_watch_job.py SETTINGS SCRIPT [ARGUMENT ..]

SETTINGS is a JSON object; see `Settings`. The hooks of the heartbeat, which are all that runs in the job's process, are
removed from torch and put back; the processes that watch from outside are stopped with SIGSTOP and continued. Both
happen between two steps, so that each step is wholly watched or wholly not. A step lasts from the beginning of one
optimizer step to that of the next.

Written to the folder: `ready` when the job has warmed up. Then the blocks begin as soon as `watchers.json` names the
processes. `blocks.jsonl` gets a line per block, `done` when the time is up; the script then goes on, watched.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HEARTBEAT = "FLATOUT_HEARTBEAT"


class Settings(NamedTuple):
    folder: str
    block_s: float
    seconds: float  # of all blocks together
    warm_up: int  # steps
    planted_share: float = 0.0  # of a step: how much longer watched steps are made, to test the method
    is_idle: bool = False  # whether the watchers stay as they are in all blocks, to test the method


class Hooks:
    """The hooks of the heartbeat in torch, in or out."""

    def __init__(self) -> None:
        folder = os.environ.pop(HEARTBEAT)
        import torch  # noqa: F401 - Flatout's own start now finds no heartbeat to install

        os.environ[HEARTBEAT] = folder
        from flatout.inside.install import _watch_life

        self._undo: list[Callable[[], None]] = [undo for undo in _watch_life(None) if undo is not None]
        if not self._undo:
            raise SystemExit("the heartbeat has no hooks")

    def take_out(self) -> None:
        for undo in self._undo:
            undo()
        self._undo = []

    def put_in(self, last_step_s: float) -> None:
        """Put the hooks back as if the last step, which took so long, had been seen."""
        from flatout.inside.liveness import heartbeat

        self._undo = heartbeat.start_heartbeat()
        heart = heartbeat.HEART
        if heart is not None and heart.beat is not None:
            before = time.monotonic_ns() - int(1e9 * last_step_s)
            heart.beat.set("last_step_end", before)
            heart.beat.set("phase_since", before)


class Blocks:
    """What happens before each optimizer step."""

    def __init__(self, settings: Settings, hooks: Hooks) -> None:
        self._settings, self._hooks = settings, hooks
        self._folder = Path(settings.folder)
        self._marks: list[float] = []
        self._delays: list[float] = []
        self._pids: list[int] | None = None
        self._number, self._is_on, self._is_over = -1, True, False
        self._began_s = self._end_s = self._planted_s = 0.0

    def before_step(self, *_: Any) -> None:
        if self._is_over:
            return
        now = time.perf_counter()
        self._marks.append(now)
        if self._pids is None:
            self._wait_for_watchers()
        elif now - self._began_s >= self._settings.block_s:
            self._ends(now)
        self._delays.append(self._delay() if self._number >= 0 and self._is_on and self._planted_s else 0.0)

    def _delay(self) -> float:
        """Delay the step by the planted time, and return how long it really took on a busy machine."""
        began = now = time.perf_counter()
        while now - began < self._planted_s:
            now = time.perf_counter()
        return now - began

    def _wait_for_watchers(self) -> None:
        if len(self._marks) == self._settings.warm_up:
            (self._folder / "ready").touch()
        if len(self._marks) < self._settings.warm_up or not (self._folder / "watchers.json").exists():
            return
        self._pids = json.loads((self._folder / "watchers.json").read_text())
        step_s = median(self._steps()[self._settings.warm_up // 2 :])
        self._planted_s = self._settings.planted_share * step_s
        self._end_s = time.perf_counter() + self._settings.seconds
        self._next_block()

    def _steps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self._marks, self._marks[1:], strict=False)]

    def _ends(self, now: float) -> None:
        with (self._folder / "blocks.jsonl").open("a") as file:
            line = {"number": self._number, "is_on": self._is_on, "began_unix_s": time.time() - (now - self._began_s)}
            times = {"step_s": self._steps(), "planted_s": self._delays}
            file.write(
                json.dumps(line | {name: [round(one, 7) for one in each] for name, each in times.items()}) + "\n"
            )
        is_pair = self._number % 2 == 1
        if is_pair and now >= self._end_s:
            self._switch(is_on=True)
            self._is_over = True
            (self._folder / "done").touch()
            return
        self._next_block()

    def _next_block(self) -> None:
        self._number += 1
        self._switch(is_on=self._number % 4 in (1, 2))  # off on, on off, ...
        self._began_s = time.perf_counter()
        self._marks, self._delays = [self._began_s], []

    def _switch(self, *, is_on: bool) -> None:
        if is_on == self._is_on:
            return
        self._is_on = is_on
        if self._settings.is_idle:
            return
        for pid in self._pids or ():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT if is_on else signal.SIGSTOP)
        if is_on:
            self._hooks.put_in(self._steps()[-1])
        else:
            self._hooks.take_out()


def main() -> None:
    settings = Settings(**json.loads(sys.argv[1]))
    script = Path(sys.argv[2]).resolve()
    hooks = Hooks()
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(Blocks(settings, hooks).before_step)
    sys.argv = sys.argv[2:]
    sys.path[0] = str(script.parent)
    runpy.run_path(str(script), run_name="__main__")


if __name__ == "__main__":
    main()
