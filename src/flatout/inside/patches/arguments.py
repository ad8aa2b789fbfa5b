"""Convert a call's arguments to named arguments and back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any


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
