"""Replace functions in Python's modules with ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any


def replace(module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function with the result of `make` for it, if the module has the function."""
    original = getattr(module, name, None)
    if original is not None:
        put(module, name, original, wraps(original)(make(original)))


def put(module: Any, name: str, original: Any, ours: Any) -> None:
    """Replace `original` with `ours`.

    `os` has sets of the functions that support certain arguments, so `ours` is added to these sets. Pickle stores a
    function by module and name, and the original's module would be `posix`, which does not contain ours.
    """
    ours.__module__ = module.__name__
    setattr(module, name, ours)
    for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in supporting:
            supporting.add(ours)
