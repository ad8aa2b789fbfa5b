"""Which file systems this process reads its samples from.

In: the paths of files that are opened or decoded while a batch is timed, the files that the process holds open for
reading, and those that it has mapped into its memory and shares. Out: how many of them are on each mount, by the
mount's folder. A symbolic link counts for the place that it leads to.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from typing import Any

MAX_FOLDERS = 64  # that are looked up: a data set of images can have thousands of folders
_MAX_OPEN_FILES = 500
_NOT_DATA = ("/dev/", "/proc/", "/sys/", "/memfd:")
_ESCAPED = re.compile(r"\\([0-7]{3})")


class ReadPaths:
    """The folders of files that were read."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._counts: Counter[str] = Counter()
        self._mount_of: dict[str, str | None] = {}

    def note(self, path: Any) -> None:
        """Count a file by its path; anything else, e.g. an open file, is not counted."""
        if isinstance(path, os.PathLike):
            path = os.fspath(path)
        if isinstance(path, str):
            folder = path.rpartition("/")[0]
            if folder in self._counts or len(self._counts) < MAX_FOLDERS:
                self._counts[folder] += 1

    def by_mount(self, *, with_mapped: bool) -> dict[str, int]:
        """Return the number of files by the folder of their mount; `with_mapped`: also of those mapped into memory."""
        counts = Counter(self._counts)
        counts.update(map(os.path.dirname, _held_files()))
        if with_mapped:
            counts.update(map(os.path.dirname, _mapped_files()))
        new = [folder for folder in counts if folder not in self._mount_of]
        if new:
            folders = _mount_folders()
            for folder in new[:MAX_FOLDERS]:
                self._mount_of[folder] = _mount_of(os.path.realpath(folder or "."), folders)
        by_mount: Counter[str] = Counter()
        for folder, count in counts.items():
            mount = self._mount_of.get(folder)
            if mount is not None:
                by_mount[mount] += count
        return dict(by_mount)


READ_PATHS = ReadPaths()  # of this process


def _held_files() -> list[str]:
    """Return the paths of the files that this process has open for reading only."""
    paths = []
    try:
        numbers = os.listdir("/proc/self/fd")[:_MAX_OPEN_FILES]
    except OSError:
        return []
    for number in numbers:
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            if not path.startswith("/") or path.startswith(_NOT_DATA):
                continue
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as file:
                flags = next((line.split()[1] for line in file if line.startswith("flags:")), "1")
        except (OSError, ValueError):
            continue
        if int(flags, 8) & os.O_ACCMODE == os.O_RDONLY and not os.path.isdir(path):
            paths.append(path)
    return paths


def _mapped_files() -> list[str]:
    """Return the paths of files that are mapped to be read and shared, as Arrow, LMDB and numpy do."""
    paths = set()
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split(None, 5)
                if len(words) == 6 and words[1] == "r--s" and words[5].startswith("/"):
                    path = words[5].rstrip("\n")
                    if not path.startswith(_NOT_DATA):
                        paths.add(path)
    except OSError:
        return []
    return list(paths)


def _mount_folders() -> list[str]:
    """Return the folders of all mounts, the longest first."""
    folders = []
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                words = line.split()
                if len(words) > 4:
                    folders.append(_ESCAPED.sub(lambda match: chr(int(match[1], 8)), words[4]))
    except OSError:
        return []
    return sorted(folders, key=len, reverse=True)


def _mount_of(path: str, folders: list[str]) -> str | None:
    return next((folder for folder in folders if path == folder or path.startswith(folder.rstrip("/") + "/")), None)
