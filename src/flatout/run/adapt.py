"""Adapt a running job: more loader workers, or more batches ahead, from the next epoch on, and back if it does not pay.

In: the heartbeats of its ranks, again and again. Out: lines for the user and the ledger, and requests to the ranks,
which `inside/liveness/adapted_loader.py` follows at the start of an epoch. In a dry run, nothing is requested: the line
says what would be.

One action at a time. Its effect is measured over `MEASURED_BLOCKS` blocks of steps before and after it; an action that
gains less than `LEAST_GAIN` is undone, and none follows it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec

from flatout.inside.protocol import File
from flatout.keep.heartbeats import BLOCK_STEPS, HeartbeatSample
from flatout.keep.ledger import LedgerFile
from flatout.records.watch import Adaptation, LoaderSettings
from flatout.secrets import write_private
from flatout.watch.diagnosis.job_steps import JobStep, JobSteps

LEAST_WAIT = 0.1  # share of the step for batches, from which an action is worth it
LEAST_GAIN = 0.03  # of the step time
MEASURED_BLOCKS = 5
SETTLING_STEPS = 40  # after an epoch begins: its first batches wait for the workers to start
_WORKERS_LIMIT = 32
_MOST_PREFETCH = 8
Mode = Literal["dry-run", "on"]


class LoaderAdapter:
    """Adapts the loader of one run. `cores` are those that each rank may use."""

    def __init__(
        self, mode: Mode, cores: int, *, say: Callable[[Adaptation], object], ledger: LedgerFile | None = None
    ) -> None:
        self._mode = mode
        self._cores = max(cores, 1)
        self._say = say
        self._ledger = ledger
        self._steps = JobSteps()
        self._recent: list[JobStep] = []
        self._state: Literal["observing", "waiting", "measuring", "over"] = "observing"
        self._number = 0
        self._action: Adaptation | None = None
        self._begins_at = 0

    def look(self, ranks: Sequence[HeartbeatSample], folder: Path | None) -> None:
        """Look at the ranks. `folder` has their heartbeats."""
        if self._state == "over" or not ranks or folder is None:
            return
        self._recent += self._steps.new_steps(ranks)
        self._recent = self._recent[-(MEASURED_BLOCKS * BLOCK_STEPS + SETTLING_STEPS) :]
        if self._state == "observing":
            self._observe(ranks, folder)
        elif self._state == "waiting":
            self._wait(ranks)
        elif self._state == "measuring":
            self._measure(folder)

    def _measured(self) -> list[JobStep] | None:
        """Return the last steps, once there are enough since the last action."""
        since = [step for step in self._recent if step.step > self._begins_at]
        enough = MEASURED_BLOCKS * BLOCK_STEPS
        return since[-enough:] if len(since) >= enough else None

    def _observe(self, ranks: Sequence[HeartbeatSample], folder: Path) -> None:
        steps = self._measured()
        own = {rank.loader for rank in ranks}
        settings = own.pop() if len(own) == 1 else None
        if steps is None or settings is None:
            return
        step_s = median(step.duration_s for step in steps)
        wait_s = median(max(step.data_s.values(), default=0.0) for step in steps)
        wanted = better_settings(settings, self._cores)
        if wait_s < LEAST_WAIT * step_s or wanted is None:
            return
        self._action = Adaptation(
            outcome="would_change" if self._mode == "dry-run" else "changed",
            before=settings,
            after=wanted,
            step=steps[-1].step,
            wait_share=wait_s / step_s,
            expected_gain=_expected_gain(settings, wanted, wait_s / step_s),
            before_s=step_s,
        )
        self._report(self._action)
        if self._mode == "dry-run":
            self._state = "over"
            return
        self._request(folder, settings, wanted)
        self._state = "waiting"

    def _wait(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Wait until all ranks have begun an epoch with the settings."""
        if all(rank.loader_request == self._number for rank in ranks):
            self._begins_at = max(rank.num_steps for rank in ranks) + SETTLING_STEPS
            self._state = "measuring"

    def _measure(self, folder: Path) -> None:
        steps, action = self._measured(), self._action
        if steps is None or action is None:
            return
        step_s = median(step.duration_s for step in steps)
        gain = 1 - step_s / action.before_s
        pays = gain >= LEAST_GAIN
        self._report(
            msgspec.structs.replace(
                action, outcome="kept" if pays else "undone", step=steps[-1].step, after_s=step_s, measured_gain=gain
            )
        )
        if not pays:
            self._request(folder, action.after, action.before)
        self._state = "observing" if pays else "over"

    def _request(self, folder: Path, before: LoaderSettings, after: LoaderSettings) -> None:
        self._number += 1
        request = msgspec.to_builtins({"number": self._number, "before": before, "after": after})
        partial = folder / f".{File.LOADER_REQUEST}"
        write_private(partial, json.dumps(request))
        partial.replace(folder / File.LOADER_REQUEST)

    def _report(self, adaptation: Adaptation) -> None:
        self._say(adaptation)
        if self._ledger is not None:
            self._ledger.write("adaptation", **msgspec.to_builtins(adaptation))


def _expected_gain(before: LoaderSettings, after: LoaderSettings, wait_share: float) -> float | None:
    """Return the most that is gained if waiting falls as workers are added; None for batches ahead."""
    if before.num_workers == after.num_workers:
        return None
    return wait_share * (1 - before.num_workers / after.num_workers)


def better_settings(settings: LoaderSettings, cores: int) -> LoaderSettings | None:
    """Return twice as many workers, as far as the cores allow, else twice as many batches ahead; None beyond both."""
    most = min(cores, _WORKERS_LIMIT)
    if settings.num_workers < most:
        return msgspec.structs.replace(settings, num_workers=min(2 * settings.num_workers, most))
    if settings.prefetch_factor < _MOST_PREFETCH:
        return msgspec.structs.replace(settings, prefetch_factor=min(2 * settings.prefetch_factor, _MOST_PREFETCH))
    return None
