"""Patch `open`, and the functions of `os` that read files and folders, for a script with redirected files.

In: the names that the script uses. Out: the same calls, on the files' actual paths. Calls on files that are neither
redirected, hidden nor the user's are passed on unchanged, as are names relative to an open folder (`dir_fd`). See
`patch_names` for renaming and removing.
"""

from __future__ import annotations

import abc
import builtins
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, cast

from flatout.inside.overlay.file_overlay import FileOverlay, is_path
from flatout.inside.overlay.patch_names import patch_names
from flatout.inside.overlay.replace import put, replace
from flatout.inside.protocol import OutputKind

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Modules that have `open` under another name.
_OPENS = (("builtins", "open"), ("io", "open"), ("tarfile", "bltn_open"), ("bz2", "_builtin_open"))


def patch_files(overlay: FileOverlay) -> None:
    _patch_open(overlay)
    _patch_looks(overlay)
    _patch_listing(overlay)
    _patch_folders(overlay)
    patch_names(overlay)


def _patch_open(overlay: FileOverlay) -> None:
    original = io.open

    @wraps(original)
    def open_(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        return original(_located_for_mode(overlay, file, mode), mode, *args, **kwargs)

    for holder, name in _OPENS:
        module = sys.modules.get(holder, builtins)
        if getattr(module, name, None) is original:
            setattr(module, name, open_)

    def opening(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is None and is_path(path):
                if flags & os.O_RDWR and not flags & os.O_TRUNC:
                    overlay.note_reading(path)
                if flags & _WRITING:
                    path = overlay.for_writing(
                        path,
                        is_fresh=bool(flags & os.O_TRUNC),
                        is_new=bool(flags & os.O_CREAT and flags & os.O_EXCL),
                        must_exist=not flags & os.O_CREAT,
                    )
                else:
                    path = overlay.locate_to_read(path, is_followed=not flags & os.O_NOFOLLOW)
            return int(original(path, flags, mode, dir_fd=dir_fd))

        return open_file

    def truncating(original: Callable[..., Any]) -> Callable[..., Any]:
        def truncate(path: Any, length: int) -> None:
            original(overlay.for_writing(path, is_fresh=False, must_exist=True) if is_path(path) else path, length)

        return truncate

    replace(os, "open", opening)
    replace(os, "truncate", truncating)
    io.FileIO = _redirected_file_type(overlay)  # type: ignore[misc]


def _located_for_mode(overlay: FileOverlay, file: Any, mode: Any) -> Any:
    """Return where a file that is opened in this mode is now."""
    if not is_path(file):
        return file
    if not isinstance(mode, str) or not set(mode) & set("wax+"):
        return overlay.locate_to_read(file)
    if "r" in mode:
        overlay.note_reading(file)
    return overlay.for_writing(file, is_fresh="w" in mode, is_new="x" in mode, must_exist="r" in mode)


def _redirected_file_type(overlay: FileOverlay) -> type[io.FileIO]:
    """Return a subclass of `io.FileIO` that opens redirected files; the files that `open` returns are instances too."""
    original = io.FileIO

    class FileType(abc.ABCMeta):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, original) if cls is redirected else super().__instancecheck__(instance)

    def init(self: Any, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None) -> None:
        original.__init__(self, _located_for_mode(overlay, file, mode), mode, closefd, opener)

    redirected: Any = FileType("FileIO", (original,), {"__init__": init, "__module__": original.__module__})
    return cast("type[io.FileIO]", redirected)


def _patch_looks(overlay: FileOverlay) -> None:
    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None:
                is_followed = original.__name__ not in ("lstat", "readlink") and kwargs.get("follow_symlinks", True)
                path = overlay.locate(path, is_followed=is_followed)
            return original(path, *args, **kwargs)

        return look

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def access(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if kwargs.get("dir_fd") is None:
                    path = overlay.locate(path, is_followed=True)
                return original(path, *args, **kwargs)
            except FileNotFoundError:
                return False

        return access

    def marking(original: Callable[..., Any]) -> Callable[..., Any]:
        """Preserve the timestamp of the user's file, by which it is recognized as the user's."""

        def mark(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None and is_path(path):
                path = overlay.locate(path, is_followed=kwargs.get("follow_symlinks", True))
                if overlay.is_users(overlay.name_of(path)):
                    copy = overlay.for_writing(path, is_fresh=False, must_exist=True)
                    return None if copy is path else original(copy, *args, **kwargs)
            return original(path, *args, **kwargs)

        return mark

    for name in ("stat", "lstat", "readlink", "listxattr", "getxattr"):
        replace(os, name, looking)
    for name in ("chmod", "chown", "utime", "setxattr", "removexattr"):
        replace(os, name, marking)
    replace(os, "access", asking)


class _Entry:
    """An entry of `os.scandir`, with the path that the script uses for it."""

    def __init__(self, entry: Any, folder: Any) -> None:
        self._entry = entry
        self.name = entry.name
        self.path = os.path.join(folder, entry.name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._entry, name)

    def __fspath__(self) -> Any:
        return self.path

    def __repr__(self) -> str:
        return f"<DirEntry {self.name!r}>"


class _Entries:
    """The entries of `os.scandir`, from two folders."""

    def __init__(self, entries: list[Any]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Any]:
        return self._entries

    def __next__(self) -> Any:
        return next(self._entries)

    def __enter__(self) -> _Entries:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def _patch_listing(overlay: FileOverlay) -> None:
    original_list, original_scan = os.listdir, os.scandir

    def changed_folder(path: Any) -> str | None:
        """Return the folder's absolute name if the script sees files that differ from those on disk, or else None."""
        if not is_path(path) or not overlay.sync():
            return None
        folder = overlay.name_of(path, is_followed=True)
        is_changed = folder in overlay.touched and not overlay.is_redirected(folder)
        return folder if is_changed else None

    def is_hidden(folder: str, name: Any) -> bool:
        return os.path.join(folder, os.fsdecode(name)) in overlay.hidden

    @wraps(original_list)
    def listdir(path: Any = None) -> Any:
        path = "." if path is None else path
        location = overlay.locate(path, is_followed=True)
        folder = changed_folder(path)
        if folder is None:
            return original_list(location)
        names = {name for name in original_list(location) if not is_hidden(folder, name)}
        redirected = overlay.names_in(folder)
        return list(names | (set(map(os.fsencode, redirected)) if isinstance(path, bytes) else redirected))

    @wraps(original_scan)
    def scandir(path: Any = None) -> Any:
        path = "." if path is None else path
        location = overlay.locate(path, is_followed=True)
        folder = changed_folder(path)
        if folder is not None:
            return scan_both(path, location, folder)
        if location is path:
            return original_scan(path)
        with original_scan(location) as entries:
            return _Entries([_Entry(entry, path) for entry in entries])

    def scan_both(path: Any, location: Any, folder: str) -> _Entries:
        """Scan a folder together with the files redirected from it."""
        redirected = overlay.names_in(folder)
        with original_scan(location) as entries:
            shown: list[Any] = [entry for entry in entries if not is_hidden(folder, entry.name)]
        shown = [entry for entry in shown if os.fsdecode(entry.name) not in redirected]
        elsewhere = overlay.folder + folder
        if redirected and os.path.isdir(elsewhere):
            with original_scan(os.fsencode(elsewhere) if isinstance(path, bytes) else elsewhere) as entries:
                shown += [_Entry(entry, path) for entry in entries if os.fsdecode(entry.name) in redirected]
        return _Entries(shown)

    put(os, "listdir", original_list, listdir)
    put(os, "scandir", original_scan, scandir)


def _patch_folders(overlay: FileOverlay) -> None:
    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
            if dir_fd is not None or not is_path(path) or overlay.is_own(overlay.name_of(path)):
                return original(path, mode, dir_fd=dir_fd)
            absolute = overlay.name_of(path)
            if overlay.sync() and overlay.is_redirected(absolute):
                return original(overlay.target(path), mode)
            if absolute in overlay.hidden:
                return overlay.write_journal("show", [absolute])
            original(overlay.where_wanted(path), mode)
            if not overlay.is_exempt(absolute):
                overlay.write_journal("made", [absolute])
                overlay.report(absolute, OutputKind.FOLDER, existed=False)
            return None

        return mkdir

    def removing(original: Callable[..., Any]) -> Callable[..., Any]:
        def rmdir(path: Any, *, dir_fd: int | None = None) -> Any:
            if dir_fd is not None or not is_path(path) or overlay.is_own(overlay.name_of(path)):
                return original(path, dir_fd=dir_fd)
            absolute, location = overlay.name_of(path), overlay.locate(path)
            if overlay.is_redirected(absolute):
                original(location)
                return overlay.removed(absolute)
            if not os.path.isdir(absolute) or overlay.is_exempt(absolute):
                return original(path)
            if os.listdir(absolute):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
            is_trials = absolute in overlay.made_folders and not overlay.users_files(absolute)
            if is_trials and removed(original, location):
                return None
            return overlay.hide([absolute])

        return rmdir

    def removed(original: Callable[..., Any], location: Any) -> bool:
        """Remove a folder; return False if it is not empty, because hidden folders are in it."""
        try:
            original(location)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise
            return False
        return True

    def making_special(original: Callable[..., Any]) -> Callable[..., Any]:
        """Report a pipe or a device, which is removed after the trial."""

        def make(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None and is_path(path) and not overlay.is_exempt(overlay.name_of(path)):
                overlay.report(overlay.name_of(path), OutputKind.NEW, existed=False)
            return original(path, *args, **kwargs)

        return make

    replace(os, "mkdir", making)
    replace(os, "rmdir", removing)
    replace(os, "mkfifo", making_special)
    replace(os, "mknod", making_special)
