"""Find the models that a process trains or infers with.

A model that is trained is found when it is wrapped or when an optimizer gets its parameters; without an optimizer, the
first model that is called without gradients is taken, from its second call on.

Patches change a model's class and affect only instances that carry a mark. So a model is copied and pickled as usual,
with the same parameter names, and its hooks contain nothing from Flatout.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from flatout.inside.live_objects import live_objects, parameters_of, root_modules
from flatout.inside.patches.report import REPORTS, Report
from flatout.inside.recording.forward_calls import FORWARD_CALLS, Listener

_Around = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]


class _Models:
    def __init__(self) -> None:
        self._callbacks: list[tuple[Report, Callable[[Any], None]]] = []
        self._has_optimizer = False
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def on_model(self, report: Report, callback: Callable[[Any], None]) -> None:
        """Call `callback` with each model, once, before its first training step (if it is found before that)."""
        if not self._callbacks:
            self._hook_optimizers()
            self._hook_ddp()
            FORWARD_CALLS.add(Listener(self._first_call))
        self._callbacks.append((report, callback))

    def _first_call(self, name: int, count: object) -> bool:
        """Take the first model that is called without gradients, unless the script trains another one."""
        del name, count
        model = None if FORWARD_CALLS.model is None else FORWARD_CALLS.model()
        if model is not None and not self._has_optimizer:
            REPORTS.infers()
            self._found(model)
        return False

    def _found(self, model: Any) -> None:
        model = unwrapped(model)
        if model in self._seen or not isinstance(model, torch.nn.Module):
            return
        self._seen.add(model)
        for report, callback in self._callbacks:
            report.guarded(callback)(model)

    def _hook_optimizers(self) -> None:
        original = Optimizer.__init__

        @wraps(original)
        def init(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._has_optimizer = True
            try:
                for model in models_of(optimizer):
                    self._found(model)
            except Exception:  # noqa: BLE001 - never the job's
                for report, _ in self._callbacks:
                    report.failed("finding the model")

        Optimizer.__init__ = init

    def _hook_ddp(self) -> None:
        if not torch.distributed.is_available():
            return
        from torch.nn.parallel import DistributedDataParallel

        original = DistributedDataParallel.__init__

        @wraps(original)
        def init(ddp: Any, module: Any, *args: Any, **kwargs: Any) -> None:
            self._found(module)
            original(ddp, module, *args, **kwargs)

        DistributedDataParallel.__init__ = init


MODELS = _Models()


def unwrapped(model: Any) -> Any:
    """Return the model without DistributedDataParallel and `torch.compile` around it."""
    while isinstance(model, torch.nn.Module):
        if type(model).__name__ == "OptimizedModule":
            model = model._orig_mod
        elif isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        else:
            break
    return model


def models_of(optimizer: Any) -> list[Any]:
    """Return the outermost modules that hold a parameter of the optimizer."""
    parameter_ids = {id(parameter) for parameter in parameters_of([optimizer])}
    return root_modules(live_objects(torch.nn.Module), parameter_ids)


def is_compiled(model: Any) -> bool:
    return any(
        type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        for module in model.modules()
    )


_wrapped: set[tuple[type, str]] = set()


def around_forward(module: Any, mark: str, around: _Around) -> None:
    """Replace this module's forward with `around(forward, module, args, kwargs)`."""
    module.__dict__[mark] = True
    kind = type(module)
    if (kind, mark) in _wrapped or any(
        (base, mark) in _wrapped and "forward" not in vars(kind) for base in kind.__mro__
    ):
        return
    _wrapped.add((kind, mark))
    original = kind.forward

    @wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        if mark in self.__dict__:
            return around(original, self, args, kwargs)
        return original(self, *args, **kwargs)

    kind.forward = forward
