"""Read Lustre's client counters: `stats` of `llite`, `osc` and `mdc`.

In: the texts by path, from /proc/fs/lustre, from /sys/kernel/debug/lustre, or printed by `lctl get_param`. Out:
`Counts` by the name of the file system. A line is `NAME COUNT samples [UNIT] MIN MAX SUM SUMSQ`; old versions
count operations without times (`[regs]` or `[reqs]`, no sum). Sources: lustre/obdclass/lprocfs_status.c and
llite/lproc_llite.c; the manual, "Monitoring Client Activity"; LUDOC-220 for `osc_read`.

Times of requests are those of `osc` (objects) and `mdc` (names), if they can be read: `llite` counts what programs
asked for, which the page cache can have served.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from flatout.storage.counts import Counts

_LINE = re.compile(
    r"^(?P<name>\w+)\s+(?P<count>\d{1,30})\s+samples\s+\[(?P<unit>\w+)\]"
    r"(?:\s+-?\d+\s+-?\d+\s+(?P<sum>-?\d{1,30})(?:\s+-?\d+)?)?\s*$"
)
_PARAMETER = re.compile(r"^(?P<name>[\w.@:-]+\.[\w.-]*stats)=(?P<rest>.*)$")
_US_PER_S = 1e6
_US = {"usec", "usecs"}
_METADATA = ("open", "getattr", "getattr_nm", "getxattr", "inode_permission", "lookup", "close", "readdir")
_OF_MDC = ("mds_getattr", "mds_getattr_lock", "mds_close", "ldlm_enqueue", "ldlm_ibits_enqueue", "mds_readpage")


class _Stat(NamedTuple):
    num_samples: float
    total: float | None  # in the line's unit
    unit: str

    @property
    def seconds(self) -> float | None:
        return self.total / _US_PER_S if self.total is not None and self.unit in _US else None


_Stats = dict[str, _Stat]


def read_lustre(files: Mapping[str, str]) -> dict[str, Counts]:
    """Return the counters of each file system by its name, e.g. `scratch`."""
    by_system: dict[str, dict[str, list[_Stats]]] = {}
    for device, system, text in _texts(files):
        by_system.setdefault(system, {}).setdefault(device, []).append(_stats(text))
    return {system: _counts(devices) for system, devices in by_system.items() if "llite" in devices}


def _texts(files: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return the kind of device, the file system and the text of each `stats`."""
    texts = []
    for path, text in files.items():
        parts = path.split("/")
        if len(parts) >= 3 and parts[-1] == "stats" and parts[-3] in ("llite", "osc", "mdc"):
            texts.append((parts[-3], _system(parts[-2]), text))
        elif path.startswith("lctl"):
            texts += _printed(text)
    return texts


def _printed(text: str) -> list[tuple[str, str, str]]:
    """Return the parts of what `lctl get_param` prints: `llite.scratch-ffff8a.stats=`, and then the lines."""
    parts: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        parameter = _PARAMETER.match(line.strip())
        if parameter is None:
            if parts:
                parts[-1][2].append(line)
            continue
        device, _, rest = parameter["name"].partition(".")
        instance, _, leaf = rest.rpartition(".")
        kind = device if leaf == "stats" else "other"
        parts.append((kind, _system(instance), [parameter["rest"]]))
    return [(kind, system, "\n".join(lines)) for kind, system, lines in parts if kind in ("llite", "osc", "mdc")]


def _system(instance: str) -> str:
    """Return the file system of an instance: `scratch` of `scratch-ffff8a` or of `scratch-OST0000-osc-ffff8a`."""
    return re.split(r"-(?:OST|MDT)[0-9a-fA-F]{4}|-[0-9a-fA-F]{6,}$", instance)[0]


def _stats(text: str) -> _Stats:
    stats = {}
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match is not None:
            total = float(match["sum"]) if match["sum"] is not None else None
            stats[match["name"]] = _Stat(float(match["count"]), total, match["unit"])
    return stats


def _counts(devices: Mapping[str, list[_Stats]]) -> Counts:
    llite = devices["llite"]
    osc, mdc = devices.get("osc", []), devices.get("mdc", [])
    asked_bytes = _total(llite, ("read_bytes",))
    if osc:
        num_reads, read_s = _count(osc, ("ost_read",)), _seconds(osc, ("ost_read",))
        read_bytes = _total(osc, ("read_bytes",))
    else:
        num_reads, read_s = _count(llite, ("read", "read_bytes"), first_only=True), _seconds(llite, ("read",))
        served = _total(llite, ("osc_read",))
        read_bytes = served if served is not None else asked_bytes
    metadata = mdc if _count(mdc, _OF_MDC) else llite
    names = _OF_MDC if metadata is mdc else _METADATA
    num_metadata = _count(metadata, names)
    metadata_s = _seconds(metadata, names)
    return Counts(
        num_reads=num_reads,
        read_bytes=read_bytes,
        read_s=read_s,
        num_metadata=num_metadata,
        metadata_s=metadata_s,
        num_requests=num_reads + num_metadata,
        asked_bytes=asked_bytes,
    )


def _count(devices: list[_Stats], names: tuple[str, ...], *, first_only: bool = False) -> float:
    total = 0.0
    for stats in devices:
        counts = [stats[name].num_samples for name in names if name in stats]
        total += sum(counts[:1] if first_only else counts)
    return total


def _total(devices: list[_Stats], names: tuple[str, ...]) -> float | None:
    totals = [stats[name].total for stats in devices for name in names if name in stats]
    known = [total for total in totals if total is not None]
    return sum(known) if known else None


def _seconds(devices: list[_Stats], names: tuple[str, ...]) -> float | None:
    """Return the seconds of all operations of these names; None if one was counted without its time."""
    stats = [each[name] for each in devices for name in names if name in each and each[name].num_samples]
    seconds = [stat.seconds for stat in stats]
    known = [value for value in seconds if value is not None]
    if len(known) < len(seconds):
        return None
    return sum(known) if known or any(name in each for each in devices for name in names) else None
