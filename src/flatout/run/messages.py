"""Messages to the user on standard error while a job runs."""

from __future__ import annotations

import sys
from contextlib import suppress

PREFIX = "flatout: "


def say(text: str, *, prefix: str = PREFIX) -> None:
    """Print `text` on standard error. The job is kept alive even if standard error is closed or full."""
    with suppress(OSError, ValueError):
        print(f"{prefix}{text}", file=sys.stderr, flush=True)
