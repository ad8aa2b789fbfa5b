"""Report the calls of models without gradients: the steps of a script that only infers.

In: the first call of a module without gradients. A hook that all modules share sees it, and is gone after it.
Out: a report of each later call of a module of that class, unless such a call contains it. The class's `__call__` is
replaced, and not a hook of the module set: a module with a hook of ours could not be pickled or scripted.

A script that trains is left as it was: its first call has gradients, or a batch, a backward pass or an optimizer step
comes first. So is one that compiles, before anything is traced: Dynamo would break its graph at the shared hook.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.nn
from torch.nn.modules.module import register_module_forward_pre_hook

from flatout.inside.log import LOG
from flatout.inside.recording.batches import Count, count_batch

# After this many calls without one of the first model, it is not in use any more.
MOST_WITHIN_FIRST = 256


class Listener(NamedTuple):
    """What is called at each call of a model; the first listener without interest in more is dropped."""

    begins: Callable[[int, Count], bool]  # the model's `id`, and the call's samples; whether more calls are of interest
    ended: Callable[[int, object], None] = lambda number, output: None  # the call's number, from 0, and its output


class ForwardCalls:
    """`add` begins to look for the first call; once no listener is left, all hooks are gone."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._shared_hook: Any = None
        self._original_compile: Any = None
        self._undo_class: Callable[[], None] = lambda: None
        self._is_inside = False  # a reported call is running, so calls within it are not reported
        self._num_calls = 0
        self._awaited: int | None = None  # the first model, whose first call is taken as running until its second
        self._num_within_first = 0

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener before the script runs; return what drops it."""
        if not self._listeners:
            self._install()
        self._listeners.append(listener)
        return lambda: self._drop(listener)

    def _drop(self, listener: Listener) -> None:
        if listener in self._listeners:
            self._listeners.remove(listener)
        if not self._listeners:
            self._remove()

    def _install(self) -> None:
        self._shared_hook = register_module_forward_pre_hook(self._first_call)
        original = self._original_compile = torch.compile

        @wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self._remove_shared_hook()
            result = original(*args, **kwargs)
            compiled = result
            if args and not isinstance(result, torch.nn.Module):
                # `Module.compile` compiles a method of the module, whose own calls remain the ones to count.
                compiled = getattr(args[0], "__self__", None)
            if isinstance(compiled, torch.nn.Module) and self._listeners:
                self._count_calls_of(type(compiled))
            return result

        torch.compile = compile_

    def _remove(self) -> None:
        self._remove_shared_hook()
        self._undo_class()
        self._undo_class = lambda: None

    def _remove_shared_hook(self) -> None:
        if self._shared_hook is None:
            return
        self._shared_hook.remove()
        self._shared_hook = None
        torch.compile = self._original_compile

    def _first_call(self, module: Any, args: Any) -> None:
        """Begin to count the calls of this module's class, if the script infers."""
        self._remove_shared_hook()
        if torch.is_grad_enabled():
            self._listeners.clear()
            return
        if self._begin_call(module, args, {}):
            self._awaited = id(module)
            self._count_calls_of(type(module))

    def _count_calls_of(self, module_class: type) -> None:
        self._undo_class()
        has_own_call = "__call__" in vars(module_class)
        original: Any = module_class.__call__

        @wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_inside or torch.is_grad_enabled() or self._is_within_first(module):
                return original(module, *args, **kwargs)
            self._is_inside = True
            try:
                number = self._num_calls
                is_of_interest = self._begin_call(module, args, kwargs)
                output = original(module, *args, **kwargs)
            finally:
                self._is_inside = False
            if is_of_interest:
                self._end_call(number, output)
            return output

        def undo() -> None:
            if has_own_call:
                module_class.__call__ = original  # type: ignore[method-assign]
            elif "__call__" in vars(module_class):
                del module_class.__call__

        module_class.__call__ = call  # type: ignore[method-assign]
        self._undo_class = undo

    def _is_within_first(self, module: object) -> bool:
        """Whether this may be a part of the first model, called within its first call, whose end is not seen."""
        if self._awaited is None:
            return False
        self._num_within_first += 1
        if id(module) != self._awaited and self._num_within_first <= MOST_WITHIN_FIRST:
            return True
        self._awaited = None
        return False

    def _begin_call(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Report a call; return whether any listener is left."""
        self._num_calls += 1
        for listener in self._listeners[:]:
            try:
                is_of_interest = listener.begins(id(module), count_batch(args or kwargs))
            except Exception:  # noqa: BLE001 - an error of ours is never the job's
                LOG.error("forward pass")
                is_of_interest = False
            if not is_of_interest:
                self._drop(listener)
        return bool(self._listeners)

    def _end_call(self, number: int, output: object) -> None:
        for listener in self._listeners:
            try:
                listener.ended(number, output)
            except Exception:  # noqa: BLE001 - an error of ours is never the job's
                LOG.error("forward pass")


FORWARD_CALLS = ForwardCalls()
