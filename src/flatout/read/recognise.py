"""Recognise the format of a trace by its content.

In: the first bytes of a file, decompressed. Out: a `TraceFormat`. What is not recognised is Kineto's, whose reader says
what is wrong with a file that is not a trace.
"""

from __future__ import annotations

from flatout.read.xspace_head import looks_like_xspace
from flatout.records.events import TraceFormat


def format_of_head(head: bytes) -> TraceFormat:
    """Return the format of a file that begins with `head`."""
    if looks_like_xspace(head):
        return TraceFormat.XPLANE
    return TraceFormat.KINETO
