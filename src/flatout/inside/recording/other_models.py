"""Mark the calls of other models in a trace of a script that only infers, so that they do not look like preparation.

In: the modules that are called outside the model whose calls are steps. Out: a span in the trace for each outermost one
that has parameters. The hooks, which all modules share, exist only while the trace is recorded.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from flatout.inside.protocol import OTHER_MODEL_SPAN
from flatout.inside.recording.forward_calls import FORWARD_CALLS


class OtherModels:
    """`install` before the traced calls, on the thread that calls, and `remove` after them."""

    def __init__(self) -> None:
        self._hooks: list[Any] = []
        self._thread = 0
        self._outermost: int | None = None  # the `id` of the other model that runs
        self._span: Any = None

    def install(self) -> None:
        if self._hooks:
            return
        self._thread = threading.get_ident()
        self._hooks = [
            register_module_forward_pre_hook(self._begins),
            register_module_forward_hook(self._ended, always_call=True),
        ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._close()

    def _begins(self, module: Any, args: Any) -> None:
        is_ours = threading.get_ident() == self._thread
        if self._outermost is not None or not is_ours or FORWARD_CALLS.is_inside(self._thread):
            return
        if next(module.parameters(), None) is None:
            return
        self._outermost = id(module)
        self._span = torch.autograd.profiler.record_function(OTHER_MODEL_SPAN + type(module).__name__)
        self._span.__enter__()

    def _ended(self, module: Any, args: Any, output: Any) -> None:
        if id(module) == self._outermost and threading.get_ident() == self._thread:
            self._close()

    def _close(self) -> None:
        span, self._span, self._outermost = self._span, None, None
        if span is not None:
            span.__exit__(None, None, None)


OTHER_MODELS = OtherModels()
