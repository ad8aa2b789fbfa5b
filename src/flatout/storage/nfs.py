"""Read `/proc/self/mountstats`: the counters of each NFS mount.

In: the text. Out: `Counts` by folder. Formats: statvers 1.0 and 1.1, with or without the ninth number of an operation
(errors, since Linux 5.3), blanks or tabs, `xprt` lines of TCP, UDP and RDMA, several of them with `nconnect`. Times are
milliseconds in the file. Sources: net/sunrpc/stats.c, fs/nfs/super.c and iostat.h of Linux; mountstats.py of nfs-utils.
An operation has: requests, transmissions, timeouts, bytes sent, bytes received, and the milliseconds queued, of the
round trip, and from beginning to end. A request that is sent again is queued until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from flatout.storage.counts import MAX_DIGITS, Counts

_DEVICE = re.compile(r"device (?P<source>.*) mounted on (?P<folder>\S+) with fstype (?P<kind>\S+)")
_ESCAPED = re.compile(r"\\([0-7]{3})")
_READS = {"READ", "READ_PLUS"}
# Requests that a program waits for before it can read.
_METADATA = {
    "GETATTR",
    "LOOKUP",
    "LOOKUPP",
    "LOOKUP_ROOT",
    "ACCESS",
    "OPEN",
    "OPEN_NOATTR",
    "OPEN_CONFIRM",
    "CLOSE",
    "READDIR",
    "READDIRPLUS",
    "READLINK",
    "LAYOUTGET",
}
_REQUESTS, _SENT, _RECEIVED_BYTES, _QUEUED_MS, _WHOLE_MS = 0, 1, 4, 5, 7  # columns of an operation
_MIN_NUMBERS = 8
_MS_PER_S = 1e3
_SERVER_READ, _NORMAL_READ, _DIRECT_READ = 4, 0, 2  # columns of `bytes:`


def read_mountstats(text: str) -> dict[str, Counts]:
    """Return the counters of each NFS mount by its folder; one that is mounted over another replaces it."""
    mounts: dict[str, list[str]] = {}
    lines: list[str] | None = None
    for line in text.splitlines():
        device = _DEVICE.match(line.strip())
        if device is not None:
            lines = None
            if device["kind"].startswith("nfs"):
                lines = mounts[unescaped(device["folder"])] = []
        elif lines is not None:
            lines.append(line)
    counts = {folder: _counts(lines) for folder, lines in mounts.items()}
    return {folder: counted for folder, counted in counts.items() if counted is not None}


def unescaped(path: str) -> str:
    """Return a path of the kernel's lists, in which blanks are octal numbers."""
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), path)


def _counts(lines: list[str]) -> Counts | None:
    """Return the counters of one mount; None if it has no operations."""
    numbers = {name: values for name, values in map(_numbers, lines) if values}
    operations = {name: values for name, values in numbers.items() if name.isupper() and len(values) >= _MIN_NUMBERS}
    if not operations:
        return None
    reads = [operations[name] for name in _READS & operations.keys()]
    metadata = [operations[name] for name in _METADATA & operations.keys()]
    in_bytes = numbers.get("bytes", [])
    has_bytes = len(in_bytes) > _SERVER_READ
    read_bytes = in_bytes[_SERVER_READ] if has_bytes else _total(reads, _RECEIVED_BYTES)
    age = numbers.get("age")
    return Counts(
        age_s=age[0] if age else None,
        num_reads=_total(reads, _REQUESTS),
        read_bytes=read_bytes,
        read_s=_total(reads, _WHOLE_MS) / _MS_PER_S,
        num_metadata=_total(metadata, _REQUESTS),
        metadata_s=_total(metadata, _WHOLE_MS) / _MS_PER_S,
        queued_s=_total([*reads, *metadata], _QUEUED_MS) / _MS_PER_S,
        num_requests=_total(operations.values(), _REQUESTS),
        num_resent=sum(max(values[_SENT] - values[_REQUESTS], 0) for values in operations.values()),
        asked_bytes=in_bytes[_NORMAL_READ] + in_bytes[_DIRECT_READ] if has_bytes else None,
    )


def _total(operations: Iterable[Sequence[float]], column: int) -> float:
    return sum(values[column] for values in operations)


def _numbers(line: str) -> tuple[str, list[float]]:
    """Return the name of a line and its numbers; none if something in it is not a number."""
    name, separator, rest = line.strip().partition(":")
    words = rest.split()
    if not separator or not all(word.isdecimal() and len(word) <= MAX_DIGITS for word in words):
        return name, []
    return name, [float(word) for word in words]
