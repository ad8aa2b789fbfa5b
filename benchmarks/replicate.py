"""One trace made from another: the same events again and again, later each time, with numbers of their own."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

_START = b'"traceEvents": ['
_METADATA = re.compile(rb',\s*\{\s*"name": "process_name", "ph": "M"')  # in the file's own layout
_TIME = re.compile(rb'"ts": (\d+)')
_SHIFTED = re.compile(rb'("ts": |"id": |"correlation": |"External id": |"Ev Idx": |"ProfilerStep#)(\d+)')


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
    stamps = [int(match[1]) for match in _TIME.finditer(events)]
    numbers = [int(match[2]) for match in _SHIFTED.finditer(events) if match[1] not in (b'"ts": ', b'"ProfilerStep#')]
    steps = {int(match[2]) for match in _SHIFTED.finditer(events) if match[1] == b'"ProfilerStep#'}
    shifts = {b'"ts": ': max(stamps) - min(stamps) + 100_000, b'"ProfilerStep#': len(steps)}
    yield text[:begin]
    for copy in range(times):
        if copy:
            yield b","

        def shifted(match: re.Match[bytes], copy: int = copy) -> bytes:
            return b"%s%d" % (match[1], int(match[2]) + copy * shifts.get(match[1], max(numbers) + 1))

        yield _SHIFTED.sub(shifted, events)
    yield end
