"""Hooks for rare events that lengthen a step: garbage collection, loader starts, evaluation, compilation, logging.

In: a function that returns the active recorder, or None. Out: notes of its `spell`, `evaluation_begins`, ... The hooks
cost nothing in a step without such an event: `Module.train` is hooked only while a module is in evaluation mode, and
short collections of young objects are not noted.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
import torch.nn
import torch.utils.data

from flatout.inside.log import guarded
from flatout.inside.recording.spells import COLLECTION, COMPILATION, LOADER_START, LOGGING
from flatout.inside.recording.start_times import START_TIMES

_now = time.perf_counter_ns
MIN_COLLECTION_NS = 100_000  # shorter collections are not noted
_FULL = 2  # generation of a full collection
_LOGGERS = (
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("flush", "add_histogram", "add_image", "add_images")),
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_scalar", "add_scalars", "add_figure", "add_video")),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
    ("mlflow.tracking.fluent", "", ("log_metric", "log_metrics", "log_artifact")),
)

Active = Callable[[], Any]
_is_compiling: Callable[[], bool] = torch.compiler.is_dynamo_compiling


def hook_collections(active: Active) -> Callable[[], None]:
    """Note the collections of Python's garbage collector: they stop all threads that run Python code."""
    began = 0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = _now()
            return
        ended = _now()
        if ended - began < MIN_COLLECTION_NS or not began:
            return
        try:
            recorder = active()
            if recorder is not None:
                recorder.spell(COLLECTION, began, ended, is_full=info["generation"] == _FULL)
        except Exception:  # noqa: BLE001 - while Python ends, anything may be gone
            return

    gc.callbacks.append(collected)

    def undo() -> None:
        if collected in gc.callbacks:  # the script may have cleared the list
            gc.callbacks.remove(collected)

    return undo


def hook_loader_starts(active: Active) -> Callable[[], None]:
    """Record how long it takes to make a loader's iterator, which starts its workers."""
    loader = torch.utils.data.DataLoader
    original = loader.__iter__

    @wraps(original)
    def make_iterator(self: Any) -> Any:
        began = _now()
        iterator = original(self)
        _note(active, LOADER_START, began)
        return iterator

    loader.__iter__ = make_iterator
    return lambda: setattr(loader, "__iter__", original)


@guarded
def _note(active: Active, kind: int, began: int) -> None:
    recorder = active()
    if recorder is not None:
        recorder.spell(kind, began, _now())
    elif kind == LOADER_START:
        START_TIMES.add(START_TIMES.loaders, began)


def hook_evaluations(active: Active) -> Callable[[], None]:
    """Note when a module enters evaluation mode, and when a module leaves it again by `train()`."""
    module = torch.nn.Module
    original_eval = module.eval
    original_train: list[Any] = []  # `Module.train`, while it is hooked

    def unhook_train() -> None:
        if original_train:
            module.train = original_train.pop()

    def hook_train() -> None:
        if original_train:
            return
        train_before = module.train
        original_train.append(train_before)

        @wraps(train_before)
        def train(self: Any, mode: bool = True) -> Any:
            if mode and not _is_compiling():
                unhook_train()
                _evaluation_ends(active)
            return train_before(self, mode)

        module.train = train

    @wraps(original_eval)
    def evaluate(self: Any) -> Any:
        result = original_eval(self)
        if not _is_compiling() and _evaluation_begins(active):
            hook_train()
        return result

    module.eval = evaluate

    def undo() -> None:
        unhook_train()
        module.eval = original_eval

    return undo


@guarded
def _evaluation_begins(active: Active) -> bool:
    recorder = active()
    if recorder is not None:
        recorder.evaluation_begins(_now())
    else:
        START_TIMES.evaluation_begins()
    return True


@guarded
def _evaluation_ends(active: Active) -> None:
    recorder = active()
    START_TIMES.evaluation_ends()
    if recorder is not None:
        recorder.evaluation_ends(_now())


class LateHooks:
    """Hooks of modules that the script may import later: `look` installs them once they are there."""

    def __init__(self, active: Active) -> None:
        self._active = active
        self._has_compiler = False
        self._hooked: set[tuple[str, str, str]] = set()

    def look(self) -> None:
        """Install the hooks of modules that have been imported since the last call."""
        if not self._has_compiler and "torch._dynamo.callback" in sys.modules:
            self._has_compiler = True
            guarded(self._hook_compiler)()
        for module_name, class_name, functions in _LOGGERS:
            module = sys.modules.get(module_name)
            owner = getattr(module, class_name, None) if class_name else module
            if owner is None:
                continue
            for name in functions:
                self._hook_function(module_name, owner, class_name, name)

    def _hook_function(self, module_name: str, owner: Any, class_name: str, name: str) -> None:
        key = (module_name, class_name, name)
        if key in self._hooked or not hasattr(owner, name):
            return
        self._hooked.add(key)
        original, active = getattr(owner, name), self._active

        @wraps(original)
        def log(*args: Any, **kwargs: Any) -> Any:
            began = _now()
            try:
                return original(*args, **kwargs)
            finally:
                _note(active, LOGGING, began)

        setattr(owner, name, log)

    def _hook_compiler(self) -> None:
        handler = sys.modules["torch._dynamo.callback"].callback_handler
        active = self._active
        began = 0

        def begins(*_: Any) -> None:
            nonlocal began
            began = _now()

        def ends(*_: Any) -> None:
            if began:
                _note(active, COMPILATION, began)

        handler.register_start_callback(begins)
        handler.register_end_callback(ends)
