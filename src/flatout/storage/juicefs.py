"""Read `.stats` of a JuiceFS mount.

In: the text. Out: `Counts`. Formats: the community edition prints `juicefs_NAME VALUE`, with labels in braces or joined
to the name by underscores, and the number of a histogram as `_total` or `_count`; the commercial edition prints
`NAME: VALUE` with microseconds. Sources: pkg/vfs/internal.go and cmd/stats.go of JuiceFS; docs/reference/p8s_metrics;
pkg/ddc/juicefs of Fluid for the commercial edition.
"""

from __future__ import annotations

import re

from flatout.storage.counts import Counts

_LINE = re.compile(r"^(?P<name>[\w.]+)(?:\{(?P<labels>[^}]*)\})?:?\s+(?P<value>[-+0-9.eE]{1,30})\s*$")
_METHOD = re.compile(r'method="(\w+)"')
_US_PER_S = 1e6
_MOST = 1e30  # more than any counter reaches
_META_OF_CLIENT = ("getattr", "lookup", "open", "access", "opendir", "readdir")
_HISTOGRAM = "durations_histogram_seconds"


def read_stats(text: str) -> Counts | None:
    """Return the counters of a mount; None if the text has none that are known."""
    values: dict[str, float] = {}
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is None:
            continue
        name = match["name"].removeprefix("juicefs_")
        method = _METHOD.search(match["labels"] or "")
        if method is not None:
            name = _with_method(name, method[1])
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if 0 <= value < _MOST:
            values[name] = values.get(name, 0.0) + value
    if "uptime" not in values and not any(name.startswith(("fuse", "blockcache", "object")) for name in values):
        return None
    return _commercial(values) if any(name.startswith("fuse_ops.") for name in values) else _community(values)


def _with_method(name: str, method: str) -> str:
    """Return the name with the method where the text without labels has it: before `_sum` and `_count`."""
    for end in ("_sum", "_count", "_total"):
        if name.endswith(end):
            return f"{name.removesuffix(end)}_{method.upper()}{end}"
    return f"{name}_{method.upper()}"


def _community(values: dict[str, float]) -> Counts:
    gets = f"object_request_{_HISTOGRAM}_GET"
    num_reads, read_s = _histogram(values, gets)
    num_metadata, metadata_s = _histogram(values, f"meta_ops_{_HISTOGRAM}")
    num_fuse, _ = _histogram(values, f"fuse_ops_{_HISTOGRAM}")
    missed_bytes = values.get("object_request_data_bytes_GET", values.get("blockcache_miss_bytes"))
    return Counts(
        age_s=values.get("uptime"),
        num_reads=num_reads,
        read_bytes=missed_bytes,
        read_s=read_s,
        num_metadata=num_metadata,
        metadata_s=metadata_s,
        num_requests=num_fuse if num_fuse is not None else num_metadata,
        num_resent=values.get("object_request_errors"),
        asked_bytes=values.get("fuse_read_size_bytes_sum"),
    )


def _histogram(values: dict[str, float], name: str) -> tuple[float | None, float | None]:
    """Return the number and the sum of a histogram, or of all its methods if only those are there."""
    counts = [values[name + end] for end in ("_total", "_count") if name + end in values]
    if counts:
        return counts[0], values.get(f"{name}_sum")
    pattern = re.compile(rf"{re.escape(name)}_[A-Za-z]+_(total|count)")
    names = [key for key in values if pattern.fullmatch(key)]
    if not names:
        return None, None
    sums = [values.get(re.sub(r"_(total|count)$", "_sum", key), 0.0) for key in names]
    return sum(values[key] for key in names), sum(sums)


def _commercial(values: dict[str, float]) -> Counts:
    num_metadata = values.get("metaRequest")
    if num_metadata is None:
        num_metadata = sum(values.get(f"fuse_ops.{name}", 0.0) for name in _META_OF_CLIENT)
    return Counts(
        age_s=values.get("uptime"),
        num_reads=values.get("object.get"),
        read_bytes=values.get("get_bytes", values.get("blockcache.missBytes")),
        read_s=_seconds(values.get("objectDuration.get")),
        num_metadata=num_metadata,
        metadata_s=_seconds(values.get("metaDuration")),
        num_requests=values.get("fuse_ops", values.get("operations")),
        num_resent=values.get("object.error"),
        asked_bytes=values.get("read_bytes"),
    )


def _seconds(microseconds: float | None) -> float | None:
    return None if microseconds is None else microseconds / _US_PER_S
