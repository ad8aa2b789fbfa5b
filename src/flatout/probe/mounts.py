"""The file systems that are mounted on this machine, and the machine's boot.

In: the kernel's lists. Out: `Mount` and the ID of this boot; nothing where the kernel does not say.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ESCAPED = re.compile(r"\\([0-7]{3})")  # blanks in paths


@dataclass(frozen=True, slots=True)
class Mount:
    folder: str
    kind: str  # of the file system, as the kernel calls it: ext4, nfs4, fuse.sshfs


def read_mounts(path: Path = _MOUNTS) -> list[Mount]:
    """Return the mounted file systems."""
    with suppress(OSError):
        return [mount for line in path.read_text(encoding="utf-8").splitlines() if (mount := _mount(line))]
    return []


def _mount(line: str) -> Mount | None:
    """Read a line: its fifth word is the folder, and the first after ` - ` the kind of file system."""
    before, _, after = line.partition(" - ")
    words, kinds = before.split(), after.split()
    if len(words) < 5 or not kinds:
        return None
    return Mount(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[4]), kinds[0])


def boot_id() -> str:
    """Return the name of this boot of the machine."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return "boot"
