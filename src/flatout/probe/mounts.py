"""The file systems that are mounted on this machine, and the machine's boot.

In: the kernel's lists. Out: `MountPoint` and the ID of this boot; nothing where the kernel does not say.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK = re.compile(r"nfs\d?|lustre|cifs|smb3|ceph|gpfs|beegfs|fuse\..+|9p|virtiofs|glusterfs|wekafs|afs")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in paths


@dataclass(frozen=True, slots=True)
class MountPoint:
    folder: str
    kind: str  # of the file system, as the kernel calls it: ext4, nfs4, fuse.sshfs


def read_mounts(path: Path = _MOUNTS) -> list[MountPoint]:
    """Return the mounted file systems."""
    with suppress(OSError):
        return [mount for line in path.read_text(encoding="utf-8").splitlines() if (mount := _mount(line))]
    return []


def kind_of(folder: Path, mounts: Sequence[MountPoint]) -> str:
    """Return the kind of the file system that holds a folder; "" if it is unknown."""
    above = [mount for mount in mounts if folder.is_relative_to(mount.folder)]
    return max(above, key=lambda mount: len(mount.folder)).kind if above else ""


def is_network(kind: str) -> bool:
    """Whether a file system of this kind is reached over a network."""
    return _NETWORK.fullmatch(kind) is not None


def _mount(line: str) -> MountPoint | None:
    """Read a line: its fifth word is the folder, and the first after ` - ` the kind of file system."""
    before, _, after = line.partition(" - ")
    words, kinds = before.split(), after.split()
    if len(words) < 5 or not kinds:
        return None
    return MountPoint(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[4]), kinds[0])


def boot_id() -> str:
    """Return the name of this boot of the machine."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "boot"
