"""One trace made from another: the same events again and again, later each time, with numbers of their own."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

_START = b'"traceEvents": ['
_METADATA = re.compile(rb',\s*\{\s*"name": "process_name", "ph": "M"')  # in the file's own layout
_TIME, _STEP = b'"ts": ', b'"ProfilerStep#'
_PAUSE_US = 100_000  # between copies: longer than any event that reaches beyond the last start
_SHIFTED = re.compile(
    rb'("ts": |"id": |"correlation": |"External id": |"Ev Idx": |"Sequence number": |"ProfilerStep#)(\d+)'
)


def replicate(trace: Path, times: int) -> Iterator[bytes]:
    """The text of a trace with all events of `trace` (.json.gz), `times` times one after the other.

    Times, correlations, flows, external ids and step numbers of each copy lie behind those of the one before. The
    layout of the text stays the profiler's own. The metadata events at the end are not repeated.
    """
    text = gzip.decompress(trace.read_bytes())
    begin = text.index(_START) + len(_START)
    metadata = _METADATA.search(text, begin)
    assert metadata is not None, "the trace has its metadata events behind the others"
    events, end = text[begin : metadata.start()], text[metadata.start() :]
    first: dict[bytes, int] = {}
    last: dict[bytes, int] = {}
    for key, digits in _SHIFTED.findall(events):
        first[key] = min(int(digits), first.get(key, int(digits)))
        last[key] = max(int(digits), last.get(key, 0))
    shift = dict.fromkeys(last, max(last[key] for key in last if key not in (_TIME, _STEP)) + 1)
    shift[_TIME] = last[_TIME] - first[_TIME] + _PAUSE_US
    shift[_STEP] = last[_STEP] - first[_STEP] + 1
    yield text[:begin]
    for copy in range(times):
        yield (b"," if copy else b"") + _SHIFTED.sub(partial(_later, shift, copy), events)
    yield end


def _later(shift: dict[bytes, int], copy: int, match: re.Match[bytes]) -> bytes:
    return b"%s%d" % (match[1], int(match[2]) + copy * shift[match[1]])
