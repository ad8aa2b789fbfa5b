"""Decide when Python's garbage collector runs: never, on all ranks at the same step, or over new objects only.

In: the ends of steps, by the optimizers that step, or by the calls of a model in a script that only infers. Ranks that
do the same steps count the same, so they collect at the same step without a message. A step that a GradScaler skips is
not counted. Nothing is done before `after` steps. The collector is neither turned off nor called in a script that turns
it off itself or that turns it on again later; there, objects can only be frozen, which also shortens the collections
that the script asks for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.data.dataloader as loaders
from torch.optim.optimizer import register_optimizer_step_post_hook

from flatout.inside.collector import COLLECTOR
from flatout.inside.live_objects import live_objects
from flatout.inside.patches.report import Report
from flatout.inside.recording.batches import Count
from flatout.inside.recording.forward_calls import FORWARD_CALLS, Listener
from flatout.inside.recording.step_detector import StepDetector

YOUNG, ALL = 1, 2  # generations of Python's collector
FULL_EVERY = 10  # collections together, of which one examines all objects
_is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling


def garbage_collection(report: Report, *, how: str, after: int, every: int = 0) -> None:
    report.waits(f"fewer than {after} steps were made")
    detector = StepDetector()
    collections = _Collections(report, how, after, every)
    step_ends = report.guarded(collections.step_ends)

    def after_step(optimizer: Any, *_: Any) -> None:
        if not _is_compiling() and detector.optimizer(id(optimizer)):
            step_ends()

    register_optimizer_step_post_hook(after_step)

    def call_begins(model: int, count: Count) -> bool:
        if detector.forward(model):
            step_ends()
        return detector.counts_forward

    FORWARD_CALLS.add(Listener(call_begins))


class _Collections:
    """Acts at the ends of steps."""

    def __init__(self, report: Report, how: str, after: int, every: int) -> None:
        self._report = report
        self._how, self._after, self._every = how, after, every
        self._num_steps = 0
        self._is_left_alone = False

    def step_ends(self) -> None:
        self._num_steps += 1
        if self._is_left_alone or self._num_steps < self._after:
            return
        if self._num_steps == self._after:
            self._begin()
        elif COLLECTOR.is_off and gc.isenabled():
            self._leave_alone("the script turns the garbage collector on itself")
        elif self._how == "together" and self._num_steps % self._every == 0:
            is_full = self._num_steps % (FULL_EVERY * self._every) == 0
            self._collect(ALL if is_full else YOUNG)
        elif self._how == "off":
            # How many objects have been added since: Python counts them. At the exit the script's own are gone.
            self._report.details["new_objects"] = gc.get_count()[0]

    def _begin(self) -> None:
        if self._how == "freeze":
            gc.collect()  # else garbage would be frozen too
            kept = live_objects(torch.nn.Module, loaders._BaseDataLoaderIter)
            self._report.details["frozen_objects"] = COLLECTOR.freeze(kept)
            self._report.did("collections")
            return
        if not COLLECTOR.is_automatic():
            self._leave_alone("the script turns the garbage collector off itself")
            return
        COLLECTOR.turn_off()
        self._collect(ALL)

    def _collect(self, generation: int) -> None:
        gc.collect(generation)
        self._report.did("full_collections" if generation == ALL else "young_collections")

    def _leave_alone(self, reason: str) -> None:
        self._is_left_alone = True
        COLLECTOR.is_off = False
        self._report.note(reason)
