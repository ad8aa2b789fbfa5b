"""Which files a trial has elsewhere: at FLATOUT_DIVERT/<the absolute path>, for all its processes.

A file is the user's if its last change, of content or of name, is older than the trial. Such a file is never changed:
what is written to it goes to the folder, and once the script has removed it, it is hidden from the script. The state is
a journal in that folder, so that what rank 0 saves is found by rank 1. Out: a line in `diverted-<host>-<pid>.jsonl` for
each path that was diverted, each file of the user's that was hidden, and each new file.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.inside.log import LOG
from flatout.inside.protocol import File, OutputKind, Variable, process_name

MAX_COPIED_BYTES = 256 << 20  # a larger file that is opened to change parts of it is changed in place, and told
_MAX_TOLD = 2000  # of one process
_MAX_LINKS = 8  # from one to the next
_JOURNAL = ".journal"
_CACHES = (
    "XDG_CACHE_HOME",
    "HF_HOME",
    "TORCH_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TORCH_EXTENSIONS_DIR",
    "TRITON_CACHE_DIR",
    "TRITON_HOME",
    "MPLCONFIGDIR",
    "PYTHONPYCACHEPREFIX",
)
_real_stat, _real_lstat, _real_fstat, _real_pread = os.stat, os.lstat, os.fstat, os.pread
_real_copy, _real_open, _real_readlink, _real_unlink = shutil.copyfile, os.open, os.readlink, os.unlink


def is_path(path: object) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


class FileOverlay:
    """The trial's files, by the names that the script has for them, made absolute."""

    def __init__(self, folder: Path, recording: Path | None) -> None:
        self.folder = os.path.realpath(folder)
        self.paths: set[str] = set()  # files that lie below `folder`
        self.trees: set[str] = set()  # folders that do, with all in them
        self.hidden: set[str] = set()  # the user's, that the script has removed
        self.made: set[str] = set()  # folders that the script has made, where it wanted them
        self.touched: set[str] = set()  # folders that do not look as they are
        self._recording = recording
        self._told: set[str] = set()
        self._real_folders: dict[str, tuple[tuple[int, int], str]] = {}  # with the device and inode that it is for
        self._has_links = False  # links that the script has made lie below `folder`
        self._own = [self.folder + os.sep]
        self._own += [os.path.realpath(one) + os.sep for one in (recording, os.environ.get(Variable.REPORTS)) if one]
        self._exempt = (*self._own, *(os.path.realpath(one) + one[len(one.rstrip(os.sep)) :] for one in _exempt()))
        os.makedirs(self.folder, exist_ok=True)
        self._journal = _real_open(self._in_folder(_JOURNAL), os.O_RDONLY | os.O_CREAT, 0o644)
        os.close(_real_open(self._in_folder(File.TRIAL_BEGAN), os.O_WRONLY | os.O_CREAT, 0o644))
        self.began_ns = _real_stat(self._in_folder(File.TRIAL_BEGAN)).st_ctime_ns
        self._num_read = 0

    # Where a file is.

    def sync(self) -> bool:
        """Learn what other processes of the trial have done since; whether anything was diverted or hidden at all."""
        with suppress(OSError, ValueError):  # a script may close what it does not know
            if _real_fstat(self._journal).st_size != self._num_read:
                self._read_journal()
        return bool(self.touched)

    def place(self, path: Any, *, is_followed: bool = False) -> Any:
        """Where the file of this name is to be found now, or with `is_followed` the one that a link of this name names.

        Raises FileNotFoundError where the script has removed it.
        """
        if not is_path(path) or not self.sync():
            return path
        absolute = self.name_of(path, is_followed=is_followed)
        if self.is_diverted(absolute):
            return self._like(path, self.folder + absolute)
        if absolute in self.hidden:
            raise _no_such_file(path)
        return self._where(path, absolute)

    def name_of(self, path: Any, *, is_followed: bool = False) -> str:
        """The one name of this file or link, whatever links name its folder; with `is_followed`, whatever names it."""
        absolute = os.path.abspath(os.fsdecode(path))
        folder, name = os.path.split(absolute)
        if name:
            absolute = os.path.join(self._real_folder(folder), name)
        return self._followed(absolute) if is_followed else absolute

    def undiverted(self, path: Any) -> Any:
        """`path`, for what is done where the script wants it."""
        return self._where(path, self.name_of(path)) if self._has_links else path

    def _where(self, path: Any, absolute: str) -> Any:
        """A link that the script has elsewhere is not found by the path that goes through it."""
        return self._like(path, absolute) if self._has_links else path

    def _real_folder(self, folder: str, num_links: int = 0) -> str:
        try:
            found = _real_stat(folder)
            now = found.st_dev, found.st_ino
        except (OSError, ValueError):
            now = None
        known = self._real_folders.get(folder)
        if known is not None and known[0] == now:
            return known[1]
        parent, name = os.path.split(folder)
        if not name or num_links > _MAX_LINKS:
            return folder
        real = os.path.join(self._real_folder(parent, num_links), name)
        link = self._link(real)
        if link is not None:
            real = self._real_folder(link, num_links + 1)
        if now is not None:
            self._real_folders[folder] = now, real
        return real

    def _followed(self, absolute: str) -> str:
        """Without links in its last part: a link of the script's may name what is diverted."""
        for _ in range(_MAX_LINKS):
            link = self._link(absolute)
            if link is None:
                break
            absolute = self.name_of(link)
        return absolute

    def _link(self, absolute: str) -> str | None:
        """What the link of this name names, as the script sees it; None where it sees no link."""
        if absolute in self.hidden:
            return None
        is_diverted = self.is_diverted(absolute)
        try:
            link = _real_readlink(self.folder + absolute if is_diverted else absolute)
        except (OSError, ValueError):
            return None
        self._has_links |= is_diverted
        return os.path.normpath(os.path.join(os.path.dirname(absolute), link))

    def is_diverted(self, absolute: str) -> bool:
        return absolute in self.paths or (bool(self.trees) and self._is_in_tree(absolute))

    def is_own(self, absolute: str) -> bool:
        """Flatout's own files, which are as they are."""
        return absolute.startswith(tuple(self._own)) or absolute == self.folder

    def is_users(self, absolute: str) -> bool:
        """Whether a file or a link of this name was there before the trial, and is no cache's or library's."""
        try:
            found = _real_lstat(absolute)
        except (OSError, ValueError):
            return False
        is_file = stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)
        return is_file and found.st_ctime_ns < self.began_ns and not self.is_exempt(absolute)

    def is_exempt(self, absolute: str) -> bool:
        return absolute.startswith(self._exempt) or "/__pycache__/" in absolute

    def users_files(self, folder: str) -> list[str]:
        """The user's files below a folder, however deep, that are not hidden yet."""
        below = (os.path.join(root, name) for root, folders, names in os.walk(folder) for name in (*names, *folders))
        return [path for path in below if path not in self.hidden and self.is_users(path)]

    # What is written.

    def target(self, path: Any, *, is_copied: bool = False, is_tree: bool = False) -> Any:
        """Where a file of this name is written to, always elsewhere; `is_copied`: with what it holds now."""
        self.sync()
        absolute = self.name_of(path)
        if self.is_own(absolute):
            return path
        target = self.prepared(absolute)
        if is_copied and not self.is_diverted(absolute) and absolute not in self.hidden and os.path.lexists(absolute):
            partial = f"{target}.{os.getpid()}.part"
            _real_copy(absolute, partial)
            with suppress(OSError):
                shutil.copymode(absolute, partial)
            os.replace(partial, target)
        self.note_diverted(absolute, is_tree=is_tree)
        return self._like(path, target)

    def prepared(self, absolute: str) -> str:
        """Where to put a file that `note_diverted` is then called for."""
        target = self.folder + absolute
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return target

    def note_diverted(self, absolute: str, *, is_tree: bool = False) -> None:
        if not self.is_diverted(absolute):
            existed = absolute not in self.hidden and os.path.lexists(absolute)
            self.write_journal("tree" if is_tree else "file", [absolute])
            self.tell(absolute, OutputKind.DIVERTED, existed=existed)

    def for_writing(self, path: Any, *, is_fresh: bool, is_new: bool = False, must_exist: bool = False) -> Any:
        """Where `open` is to write: elsewhere if the file is the user's, else where it was asked to.

        `is_fresh`: what it holds is of no use any more. `is_new`: it is an error if the file is there.
        """
        is_any = self.sync()
        absolute = self.name_of(path)
        if self.is_own(absolute):
            return path
        absolute = self._followed(absolute)
        path = self._where(path, absolute)
        if is_any:
            if self.is_diverted(absolute):
                return self._like(path, self.target(absolute))
            if absolute in self.hidden:
                if must_exist:
                    raise _no_such_file(path)
                return self._like(path, self.target(absolute))
        try:
            found = _real_stat(absolute)
        except (OSError, ValueError):
            if not self.is_exempt(absolute):
                self.tell(absolute, OutputKind.NEW, existed=False)
            return path
        if (
            is_new
            or not stat.S_ISREG(found.st_mode)
            or found.st_ctime_ns >= self.began_ns
            or self.is_exempt(absolute)
            or not os.access(absolute, os.W_OK)
        ):
            return path
        if not is_fresh and found.st_size > MAX_COPIED_BYTES:
            self.tell(absolute, OutputKind.IN_PLACE, existed=True)
            return path
        target = self.target(absolute, is_copied=not is_fresh)
        if is_fresh:
            os.close(_real_open(target, os.O_WRONLY | os.O_CREAT, 0o644))
            with suppress(OSError):
                os.chmod(target, stat.S_IMODE(found.st_mode))
        return self._like(path, target)

    # What is removed.

    def removed(self, absolute: str) -> None:
        """A diverted file is gone: of what else has its name, the script is to see nothing."""
        try:
            found = _real_lstat(absolute)
        except (OSError, ValueError):
            self.write_journal("forget", [absolute])
            return
        is_ours = not stat.S_ISDIR(found.st_mode) and found.st_ctime_ns >= self.began_ns
        if is_ours:  # the script has written it by another way before
            with suppress(OSError):
                _real_unlink(absolute)
        self.write_journal("forget" if is_ours else "hide", [absolute])

    def hide(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        self.write_journal("hide", paths)
        for path in paths:
            if self.is_users(path):  # the folders go without saying
                self.tell(path, OutputKind.KEPT, existed=True)

    def below(self, folder: str) -> list[str]:
        """All that is diverted below this folder."""
        start = folder.rstrip(os.sep) + os.sep
        return [path for path in (*self.paths, *self.trees) if path.startswith(start)]

    def names_in(self, folder: str) -> set[str]:
        return {os.path.basename(path) for path in (*self.paths, *self.trees) if os.path.dirname(path) == folder}

    # The journal, and what the trial tells.

    def write_journal(self, what: str, paths: Iterable[str]) -> None:
        data = "".join(json.dumps([what, path]) + "\n" for path in paths).encode()
        _append(self._in_folder(_JOURNAL), data)
        self.sync()

    def _read_journal(self) -> None:
        size = _real_fstat(self._journal).st_size
        data = _real_pread(self._journal, size - self._num_read, self._num_read)
        data = data[: data.rfind(b"\n") + 1]
        self._num_read += len(data)
        for line in data.splitlines():
            self._take(*json.loads(line))
        self._real_folders.clear()

    def _take(self, what: str, path: str) -> None:
        if what in ("file", "tree"):
            (self.paths if what == "file" else self.trees).add(path)
            self.hidden.discard(path)
        elif what == "hide":
            self.hidden.add(path)
            self.paths.discard(path)
            self.trees.discard(path)
        elif what == "forget":
            self.paths.discard(path)
            self.trees.discard(path)
        elif what == "made":
            self.made.add(path)
            return
        elif what == "show":
            self.hidden.discard(path)
        self.touched.add(os.path.dirname(path))

    def tell(self, path: str, kind: str, *, existed: bool) -> None:
        key = f"{kind} {path}"
        if self._recording is None or key in self._told or len(self._told) >= _MAX_TOLD:
            return
        self._told.add(key)
        line = {"path": path, "kind": kind, "existed": existed}
        if kind == OutputKind.DIVERTED:
            line["diverted_to"] = self.folder + path
        try:
            name = File.DIVERTED.of(process_name(os.uname().nodename, os.getpid()))
            _append(os.path.join(self._recording, name), (json.dumps(line) + "\n").encode())
        except OSError:
            LOG.error("telling what was diverted")

    def _is_in_tree(self, absolute: str) -> bool:
        while absolute not in self.trees:
            parent = os.path.dirname(absolute)
            if parent == absolute:
                return False
            absolute = parent
        return True

    def _in_folder(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _like(self, path: Any, found: str) -> Any:
        return os.fsencode(found) if isinstance(path, bytes) else found


def _append(path: str, data: bytes) -> None:
    """Short appends to one file do not mix."""
    file = _real_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _no_such_file(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def _exempt() -> Iterable[str]:
    """Where libraries and caches keep what is theirs."""
    home = os.path.expanduser("~")
    yield from ("/proc/", "/sys/", "/dev/")
    yield from (os.path.join(home, name) + os.sep for name in (".cache", ".triton", ".nv"))
    yield os.path.join(tempfile.gettempdir(), "torchinductor_")
    yield from (os.path.abspath(value) + os.sep for name in _CACHES if (value := os.environ.get(name)))
    yield from (entry + os.sep for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
