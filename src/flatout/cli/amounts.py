"""Options that are amounts: click's ranges let `nan` pass, and every comparison with it is false."""

from __future__ import annotations

from collections.abc import Mapping

from flatout.errors import UsageError

LARGEST = 1e9


def check_amounts(options: Mapping[str, float]) -> None:
    """Each is a number, and not beyond all use."""
    for option, value in options.items():
        if not value <= LARGEST:
            raise UsageError(f"{option} must be a number of at most {LARGEST:,.0f}, but is {value:g}")
