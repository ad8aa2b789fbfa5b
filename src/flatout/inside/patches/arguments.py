"""Convert a call's arguments to named arguments and back, and let a patch see those with which objects are made."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

Construct = Callable[[inspect.BoundArguments], None]


@cache
def parameters_of(function: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(function)


def bind(function: Callable[..., Any], args: Any, kwargs: Any) -> inspect.BoundArguments:
    """Bind a call's arguments to their names. Raises TypeError as the call itself would."""
    return parameters_of(function).bind(*args, **kwargs)


def value(bound: inspect.BoundArguments, name: str) -> Any:
    """Return the argument's value, or its default if it was not given."""
    if name in bound.arguments:
        return bound.arguments[name]
    return bound.signature.parameters[name].default


def hook_constructor(owner: Any, make: Callable[[Any, inspect.BoundArguments, Construct], None]) -> None:
    """Let `make` construct each object of a class: it gets the object, the arguments by name, and what constructs it.

    A call whose arguments do not fit the constructor is left to it, which says so.
    """
    original = owner.__init__

    def construct(bound: inspect.BoundArguments) -> None:
        original(*bound.args, **bound.kwargs)

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            bound = bind(original, (self, *args), kwargs)
        except TypeError:
            original(self, *args, **kwargs)
            return
        make(self, bound, construct)

    owner.__init__ = init
