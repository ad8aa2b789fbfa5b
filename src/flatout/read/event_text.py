"""Split the text of a trace into the part before its events, the events in blocks, and the part after them.

In: a `ByteStream`. Out: `EventText`: `head`, an iterator of blocks that begin and end at event boundaries, and after
the last block `tail` and `is_cut_short`. The complete text is never in memory at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

import msgspec

from flatout import units
from flatout.errors import InputError
from flatout.read.boundaries import last_boundary
from flatout.read.schema import UNREADABLE
from flatout.read.stream import ByteStream

# Small enough that the objects of one block stay in the processor's cache: 512 KiB decode 1.6 times as fast as 64 MiB.
BLOCK_BYTES = 1 << 19
_MAX_HEAD_BYTES = 1 << 26
_MAX_EVENT_BYTES = 1 << 26
_TRACE_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
_REPORT_OF_OURS = re.compile(rb'\A\s*\{\s*"schema"\s*:\s*"flatout/')
# The output of `--perfetto`, which is a copy of the traces that it was made from.
TRACE_OF_OURS = re.compile(rb'"otherData"\s*:\s*\{\s*"flatout"\s*:')
# First bytes of zip, bzip2, 7-Zip, Zstandard and rar files.
_OTHER_ARCHIVES = (b"PK\x03\x04", b"BZh", b"7z\xbc\xaf", b"\x28\xb5\x2f\xfd", b"Rar!")
# Its parts are possessive (`*+`): otherwise a time is needed that grows with the square of the white space.
_EVENTS_END = re.compile(rb"\}\s*+,?+\s*+\]")
# Two top-level lists, one after the other; valid JSON has a comma between such brackets.
_SECOND_LIST = re.compile(rb"\}\s*\]\s*\[\s*\{")
# A list after an object with a list of events and perhaps some texts and numbers; valid JSON has a comma between these.
_LIST_AFTER_OBJECT = re.compile(rb'\}\s*\]\s*(?:,\s*"[^"]*"\s*:\s*(?:"[^"]*"|-?[\d.]+)\s*)*\}\s*\[\s*\{')
_MAX_MARK_BYTES = 64  # length of the text that is quoted as the beginning of a second trace
_EMPTY_LIST = re.compile(rb"\A\s*\]")
EXPORT_HINT = (
    "pass a trace of PyTorch's profiler (`export_chrome_trace` or `tensorboard_trace_handler`), or one of JAX, Nsight"
    " Systems, rocprofv3 or Horovod"
)
# What the files of other tools must be turned into, by the ends of their names.
_CONVERSIONS = {
    (".nsys-rep", ".qdrep"): "export it first: nsys export --type sqlite FILE",
    (
        ".qdstrm",
    ): "nsys did not finish its report: turn it into one with QdstrmImporter, then nsys export --type sqlite",
    (".pftrace", ".perfetto-trace", ".otf2"): "record with rocprofv3 --output-format json, or pass its .db",
    (".nvvp", ".nvprof"): "record with nsys profile, then nsys export --type sqlite",
}
_SEVERAL_HINT = "pass one file per rank: split it where each trace begins"
_MAX_END_CANDIDATES = 16


class EventText:
    """The text of one trace, read once from start to end."""

    def __init__(self, stream: ByteStream, name: str) -> None:
        self.head = b""  # JSON up to and including the bracket that opens the events; empty for a top-level list
        self.tail = b""  # JSON after the bracket that closes the events
        self.is_cut_short = False  # the list of events is not closed
        self.has_trailing_comma = False  # after the last event
        self.num_bytes = 0
        self._stream = stream
        self._name = name
        self._pending = self._find_events()

    def blocks(self) -> Iterator[bytes]:
        """Yield the events, about `BLOCK_BYTES` at a time."""
        pending = self._pending
        self._pending = b""
        self._refuse_second_trace(b"", pending)
        num_wanted = max(BLOCK_BYTES - len(pending), BLOCK_BYTES // 4)
        while data := self._stream.read(num_wanted):
            self.num_bytes += len(data)
            self._refuse_second_trace(pending[-_MAX_MARK_BYTES:], data)
            pending += data
            boundary = last_boundary(pending)
            if boundary is not None:
                end, following = boundary
                yield pending[:end]
                pending = pending[following:]
            elif len(pending) > _MAX_EVENT_BYTES:
                limit = units.num_bytes(_MAX_EVENT_BYTES)
                raise InputError(f"{self._name} has more than {limit} without the end of an event", hint=EXPORT_HINT)
            # Without a boundary, double the amount, so that a long event is not searched repeatedly.
            num_wanted = max(BLOCK_BYTES - len(pending), BLOCK_BYTES // 4) if boundary else len(pending)
        last = self._split_end(pending)
        if last.strip():
            yield last

    def _refuse_second_trace(self, before: bytes, data: bytes) -> None:
        """Raise InputError if another trace begins in the text, which follows the first events."""
        if b"[" not in data and b"[" not in before:
            return
        text = before + data
        second_list = _LIST_AFTER_OBJECT if self.head else _SECOND_LIST
        is_second = _TRACE_EVENTS.search(text) or second_list.search(text)
        if is_second:
            raise InputError(
                f"{self._name} must hold one trace, but holds several: another one begins within its first"
                f" {units.num_bytes(self.num_bytes)}",
                hint=_SEVERAL_HINT,
            )

    def _find_events(self) -> bytes:
        """Read up to the first event and set `head`; return the text read beyond it."""
        text = b""
        while data := self._stream.read(1 << 20):
            self.num_bytes += len(data)
            text += data
            start = text[:4096].removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
            if start == b"[":
                return text[text.index(b"[") + 1 :]
            if start not in (b"{", b""):
                break
            match = _TRACE_EVENTS.search(text, max(0, len(text) - len(data) - 64))
            if match is not None:
                self.head = text[: match.end()].removeprefix(b"\xef\xbb\xbf")
                if TRACE_OF_OURS.search(self.head):
                    raise InputError(
                        f"{self._name} is a trace that Flatout wrote for ui.perfetto.dev",
                        hint="pass the original traces, which torch.profiler wrote",
                    )
                return text[match.end() :]
            if len(text) > _MAX_HEAD_BYTES:
                break
        raise self._no_trace(text)

    def _no_trace(self, text: bytes) -> InputError:
        name = self._name
        if not text and self._stream.problem is None:
            return InputError(f"{name} is empty", hint="the profiler may have been killed while it wrote; record again")
        if self._stream.problem is not None:
            return InputError(f"{name} has no readable events: {self._stream.problem}", hint="copy or record it again")
        if _REPORT_OF_OURS.match(text):
            return InputError(f"{name} is a Flatout report, not a trace", hint=EXPORT_HINT)
        if text.lstrip()[:1] == b"{":
            return InputError(f'{name} is not a trace: it has no list "traceEvents"', hint=EXPORT_HINT)
        if text.startswith(_OTHER_ARCHIVES):
            return InputError(
                f"{name} is compressed in an unsupported format",
                hint="unpack it first; supported are .tar, .tar.gz and .tar.xz archives, and .json.gz traces",
            )
        for ends, hint in _CONVERSIONS.items():
            if name.endswith(ends):
                return InputError(f"{name} is a report of another tool, which is not read as it is", hint=hint)
        beginning = repr(text[:16])[2:-1]  # without b''
        return InputError(f"{name} is not a JSON trace: it begins with `{beginning}`", hint=EXPORT_HINT)

    def _split_end(self, text: bytes) -> bytes:
        """Divide the last text into events and tail; return the events."""
        last_event = text.rfind(b'"ph"')
        if last_event < 0:
            match = _EMPTY_LIST.search(text)
            if match is not None:
                self.tail = text[match.end() :]
                return b""
        candidates = list(islice(_EVENTS_END.finditer(text, max(0, last_event)), _MAX_END_CANDIDATES))
        for match in candidates:
            if self._is_tail(text[match.end() :]):
                break
        else:
            if not candidates:
                self.is_cut_short = True
                return text
            match = candidates[0]
        self.has_trailing_comma = b"," in match[0]
        self.tail = text[match.end() :]
        return text[: match.start() + 1]

    def _is_tail(self, text: bytes) -> bool:
        if not self.head:
            return not text.strip()
        try:
            msgspec.json.decode(b'{"traceEvents":[]' + text, type=dict[str, msgspec.Raw])
        except UNREADABLE:
            return False
        return True
