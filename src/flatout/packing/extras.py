"""Say in one line which extra is missing, where a package of the extras `data`, `ray` or `dask` is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from flatout.errors import UsageError


@contextmanager
def needs_extra(extra: str, purpose: str) -> Iterator[None]:
    """Raise UsageError if a package that is imported within this context is not installed."""
    try:
        yield
    except ImportError as error:
        missing = (error.name or extra).split(".")[0]
        raise UsageError(
            f"{missing} is needed {purpose}, but is not installed", hint=f"pip install 'flatout[{extra}]'"
        ) from error
