"""Report the calls of models without gradients: the steps of a script that only infers.

In: the first call of a module that has parameters, without gradients. A hook that all modules share sees it, and is
gone after it. Out: a report of each later call of a module of that class, unless such a call contains it. The class's
`__call__` is replaced, and not a hook of the module set: a module with a hook of ours could not be pickled or scripted.
A loop that runs already may hold the model's own `__call__` (`generate` of transformers does), so until the new one is
called, the method that the old one calls is replaced too.

A script that trains is left as it was: its first call has gradients, or a batch, a backward pass or an optimizer step
comes first. So is one that compiles, before anything is traced: Dynamo would break its graph at the shared hook.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, NamedTuple

import torch
import torch.nn
from torch.nn.modules.module import register_module_forward_pre_hook

from flatout.inside.log import LOG
from flatout.inside.recording.batches import Count, count_batch
from flatout.inside.recording.token_reuse import TokenReuse

# After this many calls without one of the first model, it is not in use any more.
MOST_WITHIN_FIRST = 256
# Modules without parameters are steps of preparing inputs, unless nothing else is called.
MOST_WITHOUT_PARAMETERS = 64

_now = time.perf_counter_ns
_thread = threading.get_ident


class Call(NamedTuple):
    """A call of a model that has ended."""

    number: int  # from 0
    model: int  # the `id` of its model, or of the one that was made before it and is gone
    counted: Count
    num_known_tokens: int | None
    began_ns: int
    ended_ns: int


class Listener(NamedTuple):
    """What is called at each call of a model; the first listener without interest in more is dropped."""

    begins: Callable[[int, Count], bool]  # the model's `id`, and the call's samples; whether more calls are of interest
    ended: Callable[[Call, object], None] = lambda call, output: None  # the call, and its output


class ForwardCalls:
    """`add` begins to look for the first call; once no listener is left, all hooks are gone."""

    def __init__(self) -> None:
        self.model: weakref.ref[Any] | None = None  # that was called last
        self._last: tuple[type, int] | None = None  # its class, and the `id` it is reported by
        self._listeners: list[Listener] = []
        self._shared_hook: Any = None
        self._original_compile: Any = None
        self._undo_class: Callable[[], None] = lambda: None
        self._undo_running: Callable[[], None] | None = None
        self._inside: set[int] = set()  # threads on which a reported call runs, so calls within it are not reported
        self._num_calls = 0
        self._num_without_parameters = 0
        self._awaited: int | None = None  # the first model, whose first call is taken as running until its second
        self._num_within_first = 0
        self._reuse = TokenReuse()

    def add(self, listener: Listener) -> Callable[[], None]:
        """Add a listener before the script runs; return what drops it."""
        if not self._listeners:
            self._install()
        self._listeners.append(listener)
        return lambda: self._drop(listener)

    def around(self, model: int, count: Count, run: Callable[[], Any], tensors: Callable[[int, object], object]) -> Any:
        """Report a call of something other than a module, and return its result.

        `tensors` makes what the listeners get as the output, from the call's number and its result.
        """
        thread = _thread()
        if thread in self._inside or not self._listeners:
            return run()
        self._inside.add(thread)
        try:
            number = self._num_calls
            self._num_calls += 1
            self._tell_listeners(model, count)
            began_ns = _now()
            output = run()
            ended_ns = _now()
        finally:
            self._inside.discard(thread)
        if self._listeners:
            self._end_call(Call(number, model, count, None, began_ns, ended_ns), tensors(number, output))
        return output

    def is_inside(self, thread: int) -> bool:
        """Whether a call of the model runs on the thread."""
        return thread in self._inside

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
            args = self._without_replacement(args)
            self._remove_shared_hook()
            self._settle()
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
        self._settle()
        self._undo_class()
        self._undo_class = lambda: None

    def _remove_shared_hook(self) -> None:
        if self._shared_hook is not None:
            self._shared_hook.remove()
            self._shared_hook = None

    def _settle(self) -> None:
        """Replace `__call__` alone from now on, because nothing holds the old one, and leave the compiler alone."""
        if self._undo_running is not None:
            self._undo_running()
            self._undo_running = None
        if self._original_compile is not None:
            torch.compile = self._original_compile
            self._original_compile = None

    def _without_replacement(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of the compiler with the module's own method: `Module.compile` passes what it found."""
        owner = getattr(args[0], "__self__", None) if args else None
        if self._undo_running is None or owner is None or getattr(args[0], "__name__", "") != "_call_impl":
            return args
        self._undo_running()
        self._undo_running = None
        return (owner._call_impl, *args[1:])

    def _first_call(self, module: Any, args: Any) -> None:
        """Begin to count the calls of this module's class, if the script infers."""
        if torch.is_grad_enabled():
            if not self._num_calls:  # else it runs sessions of ONNX Runtime, and prepares their inputs with torch
                self._listeners.clear()
                self._remove()
            return
        if self._prepares_inputs(module):
            return
        self._remove_shared_hook()
        if self._begin_call(module, self._reported_id(module), args, {}) is not None:
            self._awaited = id(module)
            self._count_calls_of(type(module))
            if self._original_compile is not None:  # else a listener has compiled the model
                self._undo_running = self._replace(type(module), "_call_impl")

    def _prepares_inputs(self, module: Any) -> bool:
        """Whether the module has no parameters, as a transform of images has none, and another one may follow."""
        if self._num_without_parameters >= MOST_WITHOUT_PARAMETERS:
            return False
        if next(module.parameters(), None) is not None:
            return False
        self._num_without_parameters += 1
        return True

    def _count_calls_of(self, module_class: type) -> None:
        self._undo_class()
        self._undo_class = self._replace(module_class, "__call__")

    def _replace(self, module_class: type, name: str) -> Callable[[], None]:
        has_own = name in vars(module_class)
        original: Any = getattr(module_class, name)

        @wraps(original)
        def call(module: Any, *args: Any, **kwargs: Any) -> Any:
            thread = _thread()
            if thread in self._inside or torch.is_grad_enabled() or self._is_within_first(module, name):
                return original(module, *args, **kwargs)
            if name == "__call__" and self._original_compile is not None:
                self._settle()
            self._inside.add(thread)
            try:
                number = self._num_calls
                reported = self._reported_id(module)
                begun = self._begin_call(module, reported, args, kwargs)
                began_ns = _now()
                output = original(module, *args, **kwargs)
                ended_ns = _now()
            finally:
                self._inside.discard(thread)
            if begun is not None:
                self._end_call(Call(number, reported, *begun, began_ns, ended_ns), output)
            return output

        def undo() -> None:
            if has_own:
                setattr(module_class, name, original)
            elif name in vars(module_class):
                delattr(module_class, name)

        setattr(module_class, name, call)
        return undo

    def _is_within_first(self, module: object, name: str) -> bool:
        """Whether this may be a part of the first model, called within its first call, whose end is not seen."""
        if self._awaited is None:
            return False
        if self.model is not None and self.model() is None:  # it is gone, so its call has ended
            self._awaited = None
            return False
        self._num_within_first += name == "__call__"  # a call that passes both replacements counts once
        if id(module) != self._awaited and self._num_within_first <= MOST_WITHIN_FIRST:
            return True
        self._awaited = None
        return False

    def _reported_id(self, module: object) -> int:
        """Return by which `id` a model is reported: one that is made for each call has that of the first."""
        last = None if self.model is None else self.model()
        is_alive_and_other = last is not None and last is not module
        if self._last is None or is_alive_and_other or self._last[0] is not type(module):
            self._last = type(module), id(module)
        return self._last[1]

    def _begin_call(
        self, module: object, reported: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Count, int | None] | None:
        """Report a call; return its samples and known tokens, or None if no listener is left."""
        self._num_calls += 1
        count, num_known = self._counted(module, args, kwargs)
        self._tell_listeners(reported, count)
        return (count, num_known) if self._listeners else None

    def _tell_listeners(self, model: int, count: Count) -> None:
        for listener in self._listeners[:]:
            try:
                is_of_interest = listener.begins(model, count)
            except Exception:  # noqa: BLE001 - an error of ours is never the job's
                LOG.error("forward pass")
                is_of_interest = False
            if not is_of_interest:
                self._drop(listener)

    def _counted(self, module: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Count, int | None]:
        try:
            if self.model is None or self.model() is not module:
                self.model = weakref.ref(module)
            return count_batch(args or kwargs), self._reuse.take(args, kwargs)
        except Exception:  # noqa: BLE001 - an error of ours is never the job's
            LOG.error("forward pass")
            return (None, None), None

    def _end_call(self, call: Call, output: object) -> None:
        for listener in self._listeners:
            try:
                listener.ended(call, output)
            except Exception:  # noqa: BLE001 - an error of ours is never the job's
                LOG.error("forward pass")


FORWARD_CALLS = ForwardCalls()
