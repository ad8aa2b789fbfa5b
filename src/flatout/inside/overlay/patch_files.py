"""`open`, and the functions of `os` and `shutil` that take names, for a script whose files lie elsewhere in part.

In: the names as the script has them. What is not diverted, hidden or the user's is done as ever. Names that are given
relative to an open folder (`dir_fd`) are left alone.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from flatout.inside.overlay.file_overlay import FileOverlay, is_path
from flatout.inside.protocol import OutputKind

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Modules that hold `open` by a name of their own.
_OPENS = (("builtins", "open"), ("io", "open"), ("tarfile", "bltn_open"), ("bz2", "_builtin_open"))


def patch_files(diverted: FileOverlay) -> None:
    _patch_open(diverted)
    _patch_looks(diverted)
    _patch_listing(diverted)
    _patch_folders(diverted)
    _patch_names(diverted)
    _patch_shutil(diverted)


def _replace(module: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    original = getattr(module, name, None)
    if original is not None:
        _put(module, name, original, wraps(original)(make(original)))


def _put(module: Any, name: str, original: Any, ours: Any) -> None:
    """`os` tells by sets of its functions what they can do. Pickled is the name: by that of `posix` it is not ours."""
    ours.__module__ = module.__name__
    setattr(module, name, ours)
    for can in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in can:
            can.add(ours)


def _patch_open(diverted: FileOverlay) -> None:
    original = io.open

    @wraps(original)
    def open_(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if is_path(file):
            if mode in ("r", "rb") or not isinstance(mode, str) or not set(mode) & set("wax+"):
                file = diverted.place(file, is_followed=True)
            else:
                file = diverted.for_writing(file, is_fresh="w" in mode, is_new="x" in mode, must_exist="r" in mode)
        return original(file, mode, *args, **kwargs)

    for holder, name in _OPENS:
        module = sys.modules.get(holder, builtins)
        if getattr(module, name, None) is original:
            setattr(module, name, open_)

    def opening(original: Callable[..., Any]) -> Callable[..., Any]:
        def open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            if dir_fd is None and is_path(path):
                if flags & _WRITING:
                    path = diverted.for_writing(
                        path,
                        is_fresh=bool(flags & os.O_TRUNC),
                        is_new=bool(flags & os.O_CREAT and flags & os.O_EXCL),
                        must_exist=not flags & os.O_CREAT,
                    )
                else:
                    path = diverted.place(path, is_followed=not flags & os.O_NOFOLLOW)
            return int(original(path, flags, mode, dir_fd=dir_fd))

        return open_file

    def truncating(original: Callable[..., Any]) -> Callable[..., Any]:
        def truncate(path: Any, length: int) -> None:
            original(diverted.for_writing(path, is_fresh=False, must_exist=True) if is_path(path) else path, length)

        return truncate

    _replace(os, "open", opening)
    _replace(os, "truncate", truncating)


def _patch_looks(diverted: FileOverlay) -> None:
    def looking(original: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None:
                is_followed = original.__name__ not in ("lstat", "readlink") and kwargs.get("follow_symlinks", True)
                path = diverted.place(path, is_followed=is_followed)
            return original(path, *args, **kwargs)

        return look

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        def access(path: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                place = path if kwargs.get("dir_fd") is not None else diverted.place(path, is_followed=True)
                return original(place, *args, **kwargs)
            except FileNotFoundError:
                return False

        return access

    def marking(original: Callable[..., Any]) -> Callable[..., Any]:
        """The user's file stays as old as it is, as that tells that it is the user's."""

        def mark(path: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("dir_fd") is None and is_path(path):
                path = diverted.place(path, is_followed=kwargs.get("follow_symlinks", True))
                if diverted.is_users(diverted.name_of(path)):
                    place = diverted.for_writing(path, is_fresh=False, must_exist=True)
                    return None if place is path else original(place, *args, **kwargs)
            return original(path, *args, **kwargs)

        return mark

    for name in ("stat", "lstat", "readlink", "listxattr", "getxattr"):
        _replace(os, name, looking)
    for name in ("chmod", "chown", "utime", "setxattr", "removexattr"):
        _replace(os, name, marking)
    _replace(os, "access", asking)


class _Entry:
    """What `os.scandir` gives of one file, by the name that the script has for it."""

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
    """What `os.scandir` gives, of two folders."""

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


def _patch_listing(diverted: FileOverlay) -> None:
    original_list, original_scan = os.listdir, os.scandir

    def is_changed(path: Any) -> bool:
        if not is_path(path) or not diverted.sync():
            return False
        absolute = diverted.name_of(path, is_followed=True)
        return absolute in diverted.touched and not diverted.is_diverted(absolute)

    @wraps(original_list)
    def listdir(path: Any = None) -> Any:
        path = "." if path is None else path
        place = diverted.place(path, is_followed=True)
        if not is_changed(path):
            return original_list(place)
        folder = diverted.name_of(path, is_followed=True)
        names = {name for name in original_list(place) if not is_hidden(folder, os.fsdecode(name))}
        more = diverted.names_in(folder)
        return list(names | ({os.fsencode(name) for name in more} if isinstance(path, bytes) else more))

    @wraps(original_scan)
    def scandir(path: Any = None) -> Any:
        path = "." if path is None else path
        place = diverted.place(path, is_followed=True)
        if not is_changed(path):
            if place is path:
                return original_scan(path)
            with original_scan(place) as entries:
                return _Entries([_Entry(entry, path) for entry in entries])
        folder = diverted.name_of(path, is_followed=True)
        ours = diverted.names_in(folder)
        with original_scan(place) as entries:
            seen: list[Any] = [
                entry
                for entry in entries
                if os.fsdecode(entry.name) not in ours and not is_hidden(folder, os.fsdecode(entry.name))
            ]
        elsewhere = diverted.folder + folder
        if ours and os.path.isdir(elsewhere):
            with original_scan(os.fsencode(elsewhere) if isinstance(path, bytes) else elsewhere) as entries:
                seen += [_Entry(entry, path) for entry in entries if os.fsdecode(entry.name) in ours]
        return _Entries(seen)

    def is_hidden(folder: str, name: str) -> bool:
        return os.path.join(folder, name) in diverted.hidden

    _put(os, "listdir", original_list, listdir)
    _put(os, "scandir", original_scan, scandir)


def _patch_folders(diverted: FileOverlay) -> None:
    def making(original: Callable[..., Any]) -> Callable[..., Any]:
        def mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
            if dir_fd is not None or not is_path(path) or diverted.is_own(diverted.name_of(path)):
                return original(path, mode, dir_fd=dir_fd)
            absolute = diverted.name_of(path)
            if diverted.sync() and diverted.is_diverted(absolute):
                return original(diverted.target(path), mode)
            if absolute in diverted.hidden:
                return diverted.write_journal("show", [absolute])
            original(diverted.undiverted(path), mode)
            if not diverted.is_exempt(absolute):
                diverted.write_journal("made", [absolute])
                diverted.tell(absolute, OutputKind.FOLDER, existed=False)
            return None

        return mkdir

    def removing(original: Callable[..., Any]) -> Callable[..., Any]:
        def rmdir(path: Any, *, dir_fd: int | None = None) -> Any:
            if dir_fd is not None or not is_path(path) or diverted.is_own(diverted.name_of(path)):
                return original(path, dir_fd=dir_fd)
            absolute, place = diverted.name_of(path), diverted.place(path)
            if diverted.is_diverted(absolute):
                original(place)
                return diverted.removed(absolute)
            if not os.path.isdir(absolute) or diverted.is_exempt(absolute):
                return original(path)
            if os.listdir(absolute):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), os.fspath(path))
            if absolute in diverted.made and not diverted.users_files(absolute):
                try:
                    return original(place)
                except OSError as error:
                    if error.errno != errno.ENOTEMPTY:
                        raise  # else hidden folders are in it
            return diverted.hide([absolute])

        return rmdir

    _replace(os, "mkdir", making)
    _replace(os, "rmdir", removing)


def _patch_names(diverted: FileOverlay) -> None:
    def removing(original: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *, dir_fd: int | None = None) -> Any:
            if dir_fd is not None or not is_path(path):
                return original(path, dir_fd=dir_fd)
            absolute, place = diverted.name_of(path), diverted.place(path)
            if diverted.is_own(absolute):
                return original(path)
            if diverted.is_diverted(absolute):
                original(place)
                return diverted.removed(absolute)
            if diverted.is_users(absolute) and os.access(os.path.dirname(absolute), os.W_OK):
                return diverted.hide([absolute])
            return original(place)

        return remove

    def linking(original: Callable[..., Any]) -> Callable[..., Any]:
        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_path(dst) or kwargs.get("dir_fd") is not None or kwargs.get("dst_dir_fd") is not None:
                return original(src, dst, *args, **kwargs)
            absolute = diverted.name_of(dst)
            if diverted.sync() and (absolute in diverted.hidden or diverted.is_diverted(absolute)):
                dst = diverted.target(dst)
            else:
                dst = diverted.undiverted(dst)
            original(src, dst, *args, **kwargs)
            if not diverted.is_exempt(diverted.name_of(dst)):
                diverted.tell(absolute, OutputKind.NEW, existed=False)
            return None

        return link

    def linking_hard(original: Callable[..., Any]) -> Callable[..., Any]:
        """Another name of the user's file would be a way to change it: both become names of a copy."""

        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("src_dir_fd") is None and is_path(src) and is_path(dst) and not os.path.lexists(dst):
                if diverted.is_users(diverted.name_of(diverted.place(src))):
                    src = diverted.for_writing(src, is_fresh=False, must_exist=True)
                place = diverted.place(src)
                if diverted.is_own(diverted.name_of(place)):
                    dst = diverted.target(dst)
                src = place
            return linking(original)(src, dst, *args, **kwargs)

        return link

    def renaming(original: Callable[..., Any]) -> Callable[..., Any]:
        def rename(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if not (is_path(src) and is_path(dst)) or kwargs:
                return original(src, dst, *args, **kwargs)
            return _rename(diverted, original, src, dst)

        return rename

    for name in ("remove", "unlink"):
        _replace(os, name, removing)
    _replace(os, "symlink", linking)
    _replace(os, "link", linking_hard)
    for name in ("rename", "replace"):
        _replace(os, name, renaming)


def _rename(diverted: FileOverlay, original: Callable[..., Any], src: Any, dst: Any) -> Any:
    source, place, aim = diverted.name_of(src), diverted.place(src), diverted.name_of(dst)
    if diverted.is_own(source) and diverted.is_own(aim):
        return original(src, dst)
    if not os.path.isdir(os.path.dirname(aim)) or not os.path.lexists(place):
        return original(place, dst)  # its own error
    is_folder = os.path.isdir(place) and not os.path.islink(place)
    if diverted.is_diverted(source):
        original(place, diverted.target(dst, is_tree=is_folder))
        return diverted.removed(source)
    if is_folder:
        return _rename_folder(diverted, original, source, aim)
    is_users = diverted.is_users(source)
    is_kept_apart = aim in diverted.hidden or diverted.is_diverted(aim) or diverted.is_users(aim)
    if not is_users and not is_kept_apart:
        original(place, diverted.undiverted(dst))
        if not diverted.is_exempt(aim):
            diverted.tell(aim, OutputKind.NEW, existed=False)
        return None
    target = diverted.prepared(aim)
    if is_users:
        shutil.copy2(source, target, follow_symlinks=False)
        diverted.note_diverted(aim)
        return diverted.hide([source])
    try:
        original(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target, follow_symlinks=False)
        os.remove(source)
    diverted.note_diverted(aim)  # now that it is there: no other rank finds neither
    return None


def _rename_folder(diverted: FileOverlay, original: Callable[..., Any], source: str, aim: str) -> None:
    """What is diverted in it goes with it. One with files of the user's stays, hidden, and a copy is diverted."""
    has_files_of_the_users = bool(diverted.users_files(source))
    is_kept_apart = aim in diverted.hidden or diverted.is_diverted(aim)
    if has_files_of_the_users or is_kept_apart:
        target = diverted.target(aim, is_tree=True)
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(source)
        return
    within = diverted.below(source)
    original(source, aim)
    diverted.write_journal("made", [aim])
    diverted.tell(aim, OutputKind.FOLDER, existed=False)
    for root, folders, names in os.walk(aim):
        for name in (*folders, *names):
            path = os.path.join(root, name)
            if not diverted.is_own(path):
                diverted.tell(path, "folder" if os.path.isdir(path) else OutputKind.NEW, existed=False)
    for path in within:
        is_tree = path in diverted.trees
        moved = aim + path.removeprefix(source)
        original(diverted.folder + path, diverted.target(moved, is_tree=is_tree))
    diverted.write_journal("forget", within)


def _patch_shutil(diverted: FileOverlay) -> None:
    def copying(original: Callable[..., Any]) -> Callable[..., Any]:
        """A copy of what is diverted is diverted, too. The rest is done by `open`."""

        def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if not (is_path(src) and is_path(dst) and diverted.sync() and diverted.is_diverted(diverted.name_of(src))):
                return original(src, dst, *args, **kwargs)
            if os.path.isdir(dst):
                dst = os.path.join(os.fsdecode(dst), os.path.basename(os.fsdecode(src)))
            original(diverted.place(src), diverted.target(dst), *args, **kwargs)
            return dst

        return copy

    def removing(original: Callable[..., Any]) -> Callable[..., Any]:
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_path(path) or kwargs.get("dir_fd") is not None or diverted.is_own(diverted.name_of(path)):
                return original(path, *args, **kwargs)
            folder = diverted.name_of(path)
            diverted.sync()
            if folder in diverted.hidden or os.path.islink(folder) or not os.path.isdir(folder):
                return original(path, *args, **kwargs)  # its own error, where it is not there
            if diverted.is_diverted(folder):
                original(diverted.folder + folder, *args, **kwargs)
                return diverted.removed(folder)
            _remove_tree(diverted, original, folder, args, kwargs)
            return None

        rmtree.avoids_symlink_attacks = getattr(original, "avoids_symlink_attacks", False)  # type: ignore[attr-defined]
        return rmtree

    for name in ("copyfile", "copy", "copy2"):
        _replace(shutil, name, copying)
    _replace(shutil, "rmtree", removing)


def _remove_tree(diverted: FileOverlay, original: Callable[..., Any], folder: str, args: Any, kwargs: Any) -> None:
    """All of the trial's goes; the user's files and the folders that they are in stay, hidden."""
    ours = diverted.below(folder)
    if ours:
        original(diverted.folder + folder, ignore_errors=True)
        diverted.write_journal("forget", ours)
    ignores, on_error = _error_rules(*args, **kwargs)

    def tried(remove: Callable[[str], object], path: str) -> None:
        """Other ranks may remove the same tree now."""
        try:
            remove(path)
        except OSError as error:
            if not ignores:
                on_error(remove, path, error)

    users = diverted.users_files(folder) + [path for path in diverted.hidden if path.startswith(folder + os.sep)]
    is_made = folder in diverted.made or diverted.is_exempt(folder)
    if not users and is_made:
        original(folder, *args, **kwargs)
        return
    stays = {folder, *users}
    for path in users:
        while (path := os.path.dirname(path)) != folder:
            stays.add(path)
    for root, folders, names in os.walk(folder, topdown=False):
        for name in names:
            if (path := os.path.join(root, name)) not in stays:
                tried(os.remove, path)
        for name in folders:
            if (path := os.path.join(root, name)) not in stays and not os.path.islink(path):
                tried(os.rmdir, path)
    diverted.hide(path for path in stays if path not in diverted.hidden)


def _error_rules(
    ignore_errors: bool = False, onerror: Any = None, *, onexc: Any = None, **_: Any
) -> tuple[bool, Callable[[Any, str, OSError], object]]:
    """What `shutil.rmtree` is told to do with errors."""

    def on_error(function: Any, path: str, error: OSError) -> None:
        if onexc is not None:
            onexc(function, path, error)
        elif onerror is not None:
            onerror(function, path, sys.exc_info())
        else:
            raise error

    return ignore_errors, on_error
