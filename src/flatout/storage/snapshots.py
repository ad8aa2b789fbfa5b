"""Read the texts of counters, from a recording or from copies of /proc and /sys.

In: `host-<hostname>.storage.jsonl`, or folders that hold the files under their paths. Out: `StorageSnapshot`s by time.
A damaged line is skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from flatout.input_files import decode_json, read_lines

_UnixTime = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class StorageSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The texts at one time."""

    unix_s: _UnixTime
    files: dict[str, str] = {}
    problems: dict[str, str] = {}

    def text(self, path: str) -> str:
        """Return the text of the file with this path; "" if it was not read."""
        return self.files.get(path, "")

    def ending(self, name: str) -> str:
        """Return the text of the first file with this name, e.g. of a control group; "" if there is none."""
        return next((text for path, text in self.files.items() if path.endswith(f"/{name}")), "")


class Snapshots(msgspec.Struct, frozen=True, kw_only=True):
    """All snapshots of a host."""

    hostname: str
    snapshots: tuple[StorageSnapshot, ...]
    num_bad: int = 0  # lines that are damaged; the last one can be cut

    @property
    def problems(self) -> Mapping[str, str]:
        problems: dict[str, str] = {}
        for snapshot in self.snapshots:
            problems |= snapshot.problems
        return problems


def read_snapshots(path: Path, hostname: str) -> Snapshots:
    """Read the file of a host. Raise OSError if it cannot be read."""
    snapshots, num_bad = [], 0
    for line in read_lines(path):
        if not line.strip():
            continue
        try:
            snapshots.append(decode_json(line, StorageSnapshot))
        except msgspec.DecodeError:
            num_bad += 1
    return Snapshots(hostname=hostname, snapshots=in_order(snapshots), num_bad=num_bad)


def in_order(snapshots: Sequence[StorageSnapshot]) -> tuple[StorageSnapshot, ...]:
    return tuple(sorted(snapshots, key=lambda snapshot: snapshot.unix_s))
