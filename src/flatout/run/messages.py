"""Messages to the user on standard error while a job runs."""

from __future__ import annotations

import sys
from contextlib import suppress

from flatout.report.streams import one_line
from flatout.secrets import masked_text

PREFIX = "flatout: "


def say(text: str, *, prefix: str = PREFIX) -> None:
    """Print `text`, masked, on standard error. The job is kept alive even if standard error is closed or full."""
    with suppress(OSError, ValueError):
        print(f"{prefix}{one_line(masked_text(text))}", file=sys.stderr, flush=True)
