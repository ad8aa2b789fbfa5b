"""Decide where each file of a trial is: in its own place, or redirected to FLATOUT_DIVERT/<the absolute path>.

A file belongs to the user if its last change of content or name is older than the trial. Such a file is never changed:
writes to it go to the folder, and once the script has removed it, it is hidden from the script. The state is a journal
in that folder, shared by all processes of the trial, so that rank 1 finds the files that rank 0 saves. Out: a line in
`diverted-<host>-<pid>.jsonl` for each redirected path, each hidden file of the user, and each new file.
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
from flatout.inside.overlay.earlier import EarlierFiles
from flatout.inside.protocol import CACHE_VARIABLES, HOME_CACHES, File, OutputKind, Variable, process_name

MAX_COPIED_BYTES = 256 << 20  # a larger file that is opened for partial changes is changed in place, and reported
_MAX_REPORTED = 200_000  # lines per process: what is not reported is not removed after the trial
_MAX_LINKS = 8  # in a chain
_JOURNAL = ".journal"
_real_stat, _real_lstat, _real_fstat, _real_pread = os.stat, os.lstat, os.fstat, os.pread
_real_copy, _real_open, _real_readlink, _real_unlink = shutil.copyfile, os.open, os.readlink, os.unlink


def is_path(path: object) -> bool:
    return isinstance(path, (str, bytes, os.PathLike))


class FileOverlay:
    """The trial's files, by the absolute names that the script uses for them."""

    def __init__(self, folder: Path, recording: Path | None) -> None:
        self.folder = os.path.realpath(folder)
        self.files: set[str] = set()  # redirected files, which are below `folder`
        self.trees: set[str] = set()  # redirected folders, with everything in them
        self.hidden: set[str] = set()  # the user's files that the script has removed
        self.made_folders: set[str] = set()  # made by the script, where it wanted them
        self.touched: set[str] = set()  # folders in which the script sees other files than those on disk
        self._recording = recording
        self._reported: set[str] = set()
        self._real_folders: dict[str, tuple[tuple[int, int], str]] = {}  # by name: device and inode, and real name
        self._has_links = False  # whether links that the script has made are below `folder`
        flatouts = (recording, os.environ.get(Variable.REPORTS))
        self._own = [self.folder + os.sep, *(os.path.realpath(path) + os.sep for path in flatouts if path)]
        self._flatouts = tuple(self._own)
        overlaid, self._not_overlaid = _overlaid_folders()
        self._own += [path + os.sep for path in overlaid]  # the kernel keeps these files apart
        self._caches = tuple(os.path.realpath(path) + path[len(path.rstrip(os.sep)) :] for path in _exempt())
        self._exempt = (*self._own, *self._caches)
        os.makedirs(self.folder, exist_ok=True)
        self._journal = _real_open(self._in_folder(_JOURNAL), os.O_RDONLY | os.O_CREAT, 0o644)
        os.close(_real_open(self._in_folder(File.TRIAL_BEGAN), os.O_WRONLY | os.O_CREAT, 0o644))
        self.began_ns = _real_stat(self._in_folder(File.TRIAL_BEGAN)).st_ctime_ns
        self._num_read = 0  # bytes of the journal
        self._earlier = EarlierFiles(self.began_ns)
        self._is_copying = False
        for path in self._not_overlaid:
            self.report(path, OutputKind.OUTSIDE, existed=True)

    # Locating files.

    def sync(self) -> bool:
        """Read what other processes of the trial have done; return whether anything is redirected or hidden at all."""
        with suppress(OSError, ValueError):  # a script can close files that it did not open
            if _real_fstat(self._journal).st_size != self._num_read:
                self._read_journal()
        return bool(self.touched)

    def locate(self, path: Any, *, is_followed: bool = False) -> Any:
        """Return where the file with this name is now; with `is_followed`, links are followed.

        Raise FileNotFoundError if the script has removed it.
        """
        if not is_path(path) or not self.sync():
            return path
        absolute = self.name_of(path, is_followed=is_followed)
        if self.is_redirected(absolute):
            return self._like(path, self.folder + absolute)
        if absolute in self.hidden:
            raise _no_such_file(path)
        return self._where(path, absolute)

    def locate_to_read(self, path: Any, *, is_followed: bool = True) -> Any:
        """Return where the file with this name is now, which is about to be read: an earlier trial must not have
        written it."""
        location = self.locate(path, is_followed=is_followed)
        if is_path(location):
            self._check_writer(os.path.abspath(os.fsdecode(location)))
        return location

    def note_reading(self, path: Any) -> None:
        """Check who wrote a file that is opened to be changed, and may be read too; it need not exist."""
        with suppress(FileNotFoundError):
            self.locate_to_read(path)

    def _check_writer(self, absolute: str) -> None:
        writer = None if self._is_copying else self._earlier.writer_of(absolute)
        if writer is None or absolute.startswith(self._flatouts) or self._is_cached(absolute):
            return
        self.report(absolute, OutputKind.READ_EARLIER, existed=True, writer=writer)

    def name_of(self, path: Any, *, is_followed: bool = False) -> str:
        """Return a file's absolute name with links resolved in its folders; with `is_followed`, also the last part."""
        absolute = os.path.abspath(os.fsdecode(path))
        folder, name = os.path.split(absolute)
        if name:
            absolute = os.path.join(self._real_folder(folder), name)
        return self._followed(absolute) if is_followed else absolute

    def where_wanted(self, path: Any) -> Any:
        """Return `path` unchanged: the place that the script chose, not redirected."""
        return self._where(path, self.name_of(path)) if self._has_links else path

    def _where(self, path: Any, absolute: str) -> Any:
        """Return a path with the script's links resolved: the links are elsewhere, so a path through them fails."""
        return self._like(path, absolute) if self._has_links else path

    def _real_folder(self, folder: str, num_links: int = 0) -> str:
        """Return the name of a folder without links, as the script sees them."""
        try:
            status = _real_stat(folder)
            identity = status.st_dev, status.st_ino
        except (OSError, ValueError):
            identity = None
        cached = self._real_folders.get(folder)
        if cached is not None and cached[0] == identity:
            return cached[1]
        parent, name = os.path.split(folder)
        if not name or num_links > _MAX_LINKS:
            return folder
        real = os.path.join(self._real_folder(parent, num_links), name)
        link = self._link(real)
        if link is not None:
            real = self._real_folder(link, num_links + 1)
        if identity is not None:
            self._real_folders[folder] = identity, real
        return real

    def _followed(self, absolute: str) -> str:
        """Return the name with a link in its last part followed: a link of the script's can lead to a redirection."""
        for _ in range(_MAX_LINKS):
            link = self._link(absolute)
            if link is None:
                break
            absolute = self.name_of(link)
        return absolute

    def _link(self, absolute: str) -> str | None:
        """Return the target of the link with this name, as the script sees it; None if it sees no link."""
        if absolute in self.hidden:
            return None
        is_redirected = self.is_redirected(absolute)
        try:
            link = _real_readlink(self.folder + absolute if is_redirected else absolute)
        except (OSError, ValueError):
            return None
        self._has_links |= is_redirected
        return os.path.normpath(os.path.join(os.path.dirname(absolute), link))

    def is_redirected(self, absolute: str) -> bool:
        return absolute in self.files or (bool(self.trees) and self._is_in_tree(absolute))

    def is_own(self, absolute: str) -> bool:
        """Whether a file belongs to Flatout and is left alone."""
        return absolute.startswith(tuple(self._own)) or absolute == self.folder

    def is_users(self, absolute: str) -> bool:
        """Whether a file or link with this name existed before the trial, and is not part of a cache or library."""
        try:
            status = _real_lstat(absolute)
        except (OSError, ValueError):
            return False
        is_file = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        return is_file and status.st_ctime_ns < self.began_ns and not self.is_exempt(absolute)

    def is_exempt(self, absolute: str) -> bool:
        return absolute.startswith(self._exempt) or "/__pycache__/" in absolute

    def _is_cached(self, absolute: str) -> bool:
        return absolute.startswith(self._caches) or "/__pycache__/" in absolute

    def users_files(self, folder: str) -> list[str]:
        """Return the user's files below a folder, at any depth, that are not hidden yet."""
        below = (os.path.join(root, name) for root, folders, names in os.walk(folder) for name in (*names, *folders))
        return [path for path in below if path not in self.hidden and self.is_users(path)]

    # Writing.

    def target(self, path: Any, *, is_copied: bool = False, is_tree: bool = False) -> Any:
        """Redirect a file and return where to write it; with `is_copied`, its content is copied there first."""
        self.sync()
        absolute = self.name_of(path)
        if self.is_own(absolute):
            return path
        target = self.prepare_target(absolute)
        is_seen = absolute not in self.hidden and os.path.lexists(absolute)
        if is_copied and is_seen and not self.is_redirected(absolute):
            partial = f"{target}.{os.getpid()}.part"
            self._is_copying = True  # it is not the script that reads
            try:
                _real_copy(absolute, partial)
            finally:
                self._is_copying = False
            with suppress(OSError):
                shutil.copymode(absolute, partial)
            os.replace(partial, target)
        self.note_redirected(absolute, is_tree=is_tree)
        return self._like(path, target)

    def prepare_target(self, absolute: str) -> str:
        """Return the path for a file for which `note_redirected` is called afterwards."""
        target = self.folder + absolute
        os.makedirs(os.path.dirname(target), exist_ok=True)
        return target

    def note_redirected(self, absolute: str, *, is_tree: bool = False) -> None:
        if not self.is_redirected(absolute):
            existed = absolute not in self.hidden and os.path.lexists(absolute)
            self.write_journal("tree" if is_tree else "file", [absolute])
            self.report(absolute, OutputKind.DIVERTED, existed=existed)

    def for_writing(self, path: Any, *, is_fresh: bool, is_new: bool = False, must_exist: bool = False) -> Any:
        """Return where `open` must write: below the trial's folder for a user's file, else where the script wants it.

        `is_fresh`: its old content is not needed. `is_new`: it is an error if the file exists.
        """
        is_any = self.sync()
        absolute = self.name_of(path)
        if self.is_own(absolute):
            return path
        absolute = self._followed(absolute)
        path = self._where(path, absolute)
        is_redirected = is_any and self.is_redirected(absolute)
        is_removed = is_any and absolute in self.hidden and not is_redirected
        if is_removed and must_exist:
            raise _no_such_file(path)
        if is_redirected or is_removed:
            return self._like(path, self.target(absolute))
        try:
            status = _real_stat(absolute)
        except (OSError, ValueError):
            if not self.is_exempt(absolute):
                self.report(absolute, OutputKind.NEW, existed=False)
            return path
        if is_new or not self._is_to_be_kept(absolute, status):
            return path
        if not is_fresh and status.st_size > MAX_COPIED_BYTES:
            self.report(absolute, OutputKind.IN_PLACE, existed=True)
            return path
        target = self.target(absolute, is_copied=not is_fresh)
        if is_fresh:
            _create_empty(target, stat.S_IMODE(status.st_mode))
        return self._like(path, target)

    def _is_to_be_kept(self, absolute: str, status: os.stat_result) -> bool:
        """Whether a file to be written is the user's, and could be written."""
        if not stat.S_ISREG(status.st_mode) or status.st_ctime_ns >= self.began_ns:
            return False
        return not self.is_exempt(absolute) and os.access(absolute, os.W_OK)

    # Removing.

    def removed(self, absolute: str) -> None:
        """Hide the remaining files with this name from the script, after a redirected file was removed."""
        try:
            status = _real_lstat(absolute)
        except (OSError, ValueError):
            self.write_journal("forget", [absolute])
            return
        is_trials = not stat.S_ISDIR(status.st_mode) and status.st_ctime_ns >= self.began_ns
        if is_trials:  # the script has replaced the file before, by other means
            with suppress(OSError):
                _real_unlink(absolute)
        self.write_journal("forget" if is_trials else "hide", [absolute])

    def hide(self, paths: Iterable[str]) -> None:
        paths = list(paths)
        self.write_journal("hide", paths)
        for path in paths:
            if self.is_users(path):  # folders need not be reported
                self.report(path, OutputKind.KEPT, existed=True)

    def below(self, folder: str) -> list[str]:
        """Return all redirected paths below this folder."""
        start = folder.rstrip(os.sep) + os.sep
        return [path for path in (*self.files, *self.trees) if path.startswith(start)]

    def names_in(self, folder: str) -> set[str]:
        return {os.path.basename(path) for path in (*self.files, *self.trees) if os.path.dirname(path) == folder}

    # The journal, and the report on the trial.

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
            (self.files if what == "file" else self.trees).add(path)
            self.hidden.discard(path)
        elif what == "hide":
            self.hidden.add(path)
            self.files.discard(path)
            self.trees.discard(path)
        elif what == "forget":
            self.files.discard(path)
            self.trees.discard(path)
        elif what == "made":
            self.made_folders.add(path)
            return
        elif what == "show":
            self.hidden.discard(path)
        self.touched.add(os.path.dirname(path))

    def report(self, path: str, kind: str, *, existed: bool, writer: str | None = None) -> None:
        key = f"{kind} {path}"
        if self._recording is None or key in self._reported or len(self._reported) >= _MAX_REPORTED:
            return
        self._reported.add(key)
        line: dict[str, Any] = {"path": path, "kind": kind, "existed": existed}
        if writer is not None:
            line["writer"] = writer
        if kind == OutputKind.DIVERTED:
            line["diverted_to"] = self.folder + path
        try:
            name = File.DIVERTED.of(process_name(os.uname().nodename, os.getpid()))
            _append(os.path.join(self._recording, name), (json.dumps(line) + "\n").encode())
        except OSError:
            LOG.error("reporting what was redirected")

    def _is_in_tree(self, absolute: str) -> bool:
        while absolute not in self.trees:
            parent = os.path.dirname(absolute)
            if parent == absolute:
                return False
            absolute = parent
        return True

    def _in_folder(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _like(self, path: Any, location: str) -> Any:
        """Return the location as bytes if the path is bytes."""
        return os.fsencode(location) if isinstance(path, bytes) else location


def _append(path: str, data: bytes) -> None:
    """Append to a file; short appends by several processes do not mix."""
    file = _real_open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, data)
    finally:
        os.close(file)


def _create_empty(path: str, mode: int) -> None:
    os.close(_real_open(path, os.O_WRONLY | os.O_CREAT, 0o644))
    with suppress(OSError):
        os.chmod(path, mode)


def _no_such_file(path: Any) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


def _overlaid_folders() -> tuple[list[str], list[str]]:
    """Return the folders of which this process sees the trial's overlay, and those of which it should, but does not.

    A process that a scheduler or a daemon has started for the trial is outside its mount namespace.
    """
    text = os.environ.get(Variable.APART)
    if not text:
        return [], []
    apart = json.loads(text)
    is_here = apart["host"] == os.uname().nodename
    overlaid: list[str] = []
    others: list[str] = []
    for path, device in apart["folders"].items():
        try:
            is_overlaid = is_here and _real_stat(path).st_dev == device
        except OSError:
            is_overlaid = False
        (overlaid if is_overlaid else others).append(path)
    return overlaid, others


def _exempt() -> Iterable[str]:
    """Yield the folders of libraries and caches."""
    home = os.path.expanduser("~")
    yield from ("/proc/", "/sys/", "/dev/")
    yield from (os.path.join(home, name) + os.sep for name in HOME_CACHES)
    yield os.path.join(tempfile.gettempdir(), "torchinductor_")
    yield from (os.path.abspath(value) + os.sep for name in CACHE_VARIABLES if (value := os.environ.get(name)))
    yield from (entry + os.sep for entry in sys.path if entry.endswith(("site-packages", "dist-packages")))
