"""Find the first model that a process infers with, before its first call runs.

A model infers if it is called without gradients or in evaluation mode. It is the outermost module that is called and
has parameters, or the module that contains that one, if a script calls a part of its model directly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from flatout.inside.live_objects import live_objects, root_modules
from flatout.inside.patches.models import unwrapped


class FirstCall(NamedTuple):
    """The call that found the model: of the model, or of a part of it."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class FirstModel:
    """`install` replaces `Module.__call__` until the first call of a model; nothing is left afterwards."""

    def __init__(self, found: Callable[[nn.Module, FirstCall], None]) -> None:
        self._found = found
        self._is_done = False
        self._lock = threading.Lock()
        self._original: Any = None

    def install(self) -> Callable[[], None]:
        original = self._original = nn.Module.__call__
        looker = self

        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if looker._is_done or not _infers(module):
                return original(module, *args, **kwargs)
            with looker._lock:
                if not looker._is_done:
                    looker.remove()
                    called = unwrapped(module)
                    looker._found(_whole_model(called), FirstCall(called, args, kwargs))
            return module(*args, **kwargs)

        nn.Module.__call__ = call
        return self.remove

    def remove(self) -> None:
        self._is_done = True
        if self._original is not None:
            nn.Module.__call__ = self._original
            self._original = None


def _infers(module: nn.Module) -> bool:
    if torch.is_grad_enabled() and module.training:
        return False
    return next(module.parameters(), None) is not None


def _whole_model(module: nn.Module) -> nn.Module:
    """Return the outermost module that contains this one."""
    parameter_ids = {id(parameter) for parameter in module.parameters()}
    roots = [unwrapped(root) for root in root_modules(live_objects(nn.Module), parameter_ids)]
    containing = [root for root in roots if any(part is module for part in root.modules())]
    return containing[0] if len(containing) == 1 else module
