"""Recognise the format of a trace by its content.

In: the first bytes of a file, decompressed. Out: a `TraceFormat`. What is not recognised is Kineto's, whose reader says
what is wrong with a file that is not a trace.
"""

from __future__ import annotations

import re

from flatout.read.xspace_head import looks_like_xspace
from flatout.records.events import TraceFormat

# XLA's name of a process: nothing else in the copy that JAX makes for Perfetto distinguishes it from Kineto's traces.
_XLA_PROCESS = re.compile(
    rb'"name"\s*:\s*"process_name"\s*,\s*"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:host:CPU|device:[A-Z]+:\d)'
)


def _is_horovod(head: bytes) -> bool:
    is_list = head[:64].lstrip().startswith(b"[")
    return is_list and (b'"start_time_since_epoch_in_micros"' in head or b'"NEGOTIATE_' in head)


def format_of_head(head: bytes) -> TraceFormat:
    """Return the format of a file that begins with `head`."""
    if _is_horovod(head):
        return TraceFormat.HOROVOD
    if head.startswith(b"SQLite format 3\x00"):
        return TraceFormat.NSYS  # or rocpd: its tables decide
    if b'"rocprofiler-sdk-tool"' in head[:256]:
        return TraceFormat.ROCPROF
    is_of_xla = b'"highres-ticks"' in head[:1024] and (b'"/host:' in head or b'"/device:' in head)
    if is_of_xla or _XLA_PROCESS.search(head):
        return TraceFormat.JAX_TRACE
    if looks_like_xspace(head):
        return TraceFormat.XPLANE
    return TraceFormat.KINETO
