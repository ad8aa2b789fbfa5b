"""Patch removing, linking, renaming and copying, for a script with redirected files.

In: the names that the script uses. Out: the same calls. The user's files still exist afterwards, and the script no
longer sees those that it removed. See `patch_files` for opening and reading.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from flatout.inside.overlay.file_overlay import FileOverlay, is_path
from flatout.inside.overlay.replace import replace
from flatout.inside.protocol import OutputKind


def patch_names(overlay: FileOverlay) -> None:
    _patch_removing(overlay)
    _patch_linking(overlay)
    _patch_renaming(overlay)
    _patch_shutil(overlay)


def _patch_removing(overlay: FileOverlay) -> None:
    def removing(original: Callable[..., Any]) -> Callable[..., Any]:
        def remove(path: Any, *, dir_fd: int | None = None) -> Any:
            if dir_fd is not None or not is_path(path):
                return original(path, dir_fd=dir_fd)
            absolute, location = overlay.name_of(path), overlay.locate(path)
            if overlay.is_own(absolute):
                return original(path)
            if overlay.is_redirected(absolute):
                original(location)
                return overlay.removed(absolute)
            if overlay.is_users(absolute) and os.access(os.path.dirname(absolute), os.W_OK):
                return overlay.hide([absolute])
            return original(location)

        return remove

    for name in ("remove", "unlink"):
        replace(os, name, removing)


def _patch_linking(overlay: FileOverlay) -> None:
    def linking(original: Callable[..., Any]) -> Callable[..., Any]:
        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_path(dst) or kwargs.get("dir_fd") is not None or kwargs.get("dst_dir_fd") is not None:
                return original(src, dst, *args, **kwargs)
            absolute = overlay.name_of(dst)
            if overlay.sync() and (absolute in overlay.hidden or overlay.is_redirected(absolute)):
                dst = overlay.target(dst)
            else:
                dst = overlay.where_wanted(dst)
            original(src, dst, *args, **kwargs)
            if not overlay.is_exempt(overlay.name_of(dst)):
                overlay.report(absolute, OutputKind.NEW, existed=False)
            return None

        return link

    def linking_hard(original: Callable[..., Any]) -> Callable[..., Any]:
        """Link to a copy of the user's file: through another name of the file itself, the script could change it."""

        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            are_paths = is_path(src) and is_path(dst)
            if are_paths and kwargs.get("src_dir_fd") is None and not os.path.lexists(dst):
                if overlay.is_users(overlay.name_of(overlay.locate(src))):
                    src = overlay.for_writing(src, is_fresh=False, must_exist=True)
                src = overlay.locate(src)
                if overlay.is_own(overlay.name_of(src)):
                    dst = overlay.target(dst)
            return linking(original)(src, dst, *args, **kwargs)

        return link

    replace(os, "symlink", linking)
    replace(os, "link", linking_hard)


def _patch_renaming(overlay: FileOverlay) -> None:
    def renaming(original: Callable[..., Any]) -> Callable[..., Any]:
        def rename(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs or not is_path(src) or not is_path(dst):
                return original(src, dst, *args, **kwargs)
            return _rename(overlay, original, src, dst)

        return rename

    for name in ("rename", "replace"):
        replace(os, name, renaming)


def _rename(overlay: FileOverlay, original: Callable[..., Any], src: Any, dst: Any) -> Any:
    source, location, destination = overlay.name_of(src), overlay.locate(src), overlay.name_of(dst)
    if overlay.is_own(source) and overlay.is_own(destination):
        return _rename_overlaid(original, src, dst)
    if not os.path.isdir(os.path.dirname(destination)) or not os.path.lexists(location):
        return original(location, dst)  # raises its own error
    is_folder = os.path.isdir(location) and not os.path.islink(location)
    if overlay.is_redirected(source):
        original(location, overlay.target(dst, is_tree=is_folder))
        return overlay.removed(source)
    if is_folder:
        return _rename_folder(overlay, original, source, destination)
    if overlay.is_users(source):
        target = overlay.prepare_target(destination)
        shutil.copy2(source, target, follow_symlinks=False)
        overlay.note_redirected(destination)
        return overlay.hide([source])
    is_taken = destination in overlay.hidden or overlay.is_redirected(destination) or overlay.is_users(destination)
    if is_taken:
        _move(original, source, overlay.prepare_target(destination))
        overlay.note_redirected(destination)  # only now, so that other ranks always find one of the two files
        return None
    if not overlay.is_exempt(destination):
        overlay.report(destination, OutputKind.NEW, existed=False)  # first: if this process is killed, it is removed
    original(location, overlay.where_wanted(dst))
    return None


def _rename_overlaid(original: Callable[..., Any], src: Any, dst: Any) -> Any:
    """Rename in an overlaid folder. The kernel may refuse to rename a folder of the user's, which is then copied."""
    try:
        return original(src, dst)
    except OSError as error:
        is_folder = os.path.isdir(src) and not os.path.islink(src)
        if error.errno != errno.EXDEV or not is_folder:
            raise
    target = os.fsdecode(dst).rstrip(os.sep)
    partial = f"{target}.{os.getpid()}.part"
    shutil.copytree(os.fsdecode(src), partial, symlinks=True)
    original(partial, target)
    return shutil.rmtree(src)


def _move(rename: Callable[..., Any], source: str, target: str) -> None:
    """Rename a file, or copy it to another file system."""
    try:
        rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(source, target, follow_symlinks=False)
        os.remove(source)


def _rename_folder(overlay: FileOverlay, original: Callable[..., Any], source: str, destination: str) -> None:
    """Rename a folder with the files redirected in it; if it holds files of the user's, hide it and redirect a copy."""
    has_files_of_the_users = bool(overlay.users_files(source))
    is_taken = destination in overlay.hidden or overlay.is_redirected(destination)
    if has_files_of_the_users or is_taken:
        target = overlay.target(destination, is_tree=True)
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(source)
        return
    redirected = overlay.below(source)
    original(source, destination)
    overlay.write_journal("made", [destination])
    overlay.report(destination, OutputKind.FOLDER, existed=False)
    for root, folders, names in os.walk(destination):
        for name in (*folders, *names):
            path = os.path.join(root, name)
            if not overlay.is_own(path):
                kind = OutputKind.FOLDER if os.path.isdir(path) else OutputKind.NEW
                overlay.report(path, kind, existed=False)
    for path in redirected:
        is_tree = path in overlay.trees
        moved = destination + path.removeprefix(source)
        original(overlay.folder + path, overlay.target(moved, is_tree=is_tree))
    overlay.write_journal("forget", redirected)


def _patch_shutil(overlay: FileOverlay) -> None:
    def copying(original: Callable[..., Any]) -> Callable[..., Any]:
        """Redirect the copy of a redirected file; other copies go through `open`."""

        def copy(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            are_paths = is_path(src) and is_path(dst)
            if not are_paths or not overlay.sync() or not overlay.is_redirected(overlay.name_of(src)):
                return original(src, dst, *args, **kwargs)
            if os.path.isdir(dst):
                dst = os.path.join(os.fsdecode(dst), os.path.basename(os.fsdecode(src)))
            original(overlay.locate(src), overlay.target(dst), *args, **kwargs)
            return dst

        return copy

    def removing(original: Callable[..., Any]) -> Callable[..., Any]:
        def rmtree(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not is_path(path) or kwargs.get("dir_fd") is not None or overlay.is_own(overlay.name_of(path)):
                return original(path, *args, **kwargs)
            folder = overlay.name_of(path)
            overlay.sync()
            if folder in overlay.hidden or os.path.islink(folder) or not os.path.isdir(folder):
                return original(path, *args, **kwargs)  # raises its own error if the folder does not exist
            if overlay.is_redirected(folder):
                original(overlay.folder + folder, *args, **kwargs)
                return overlay.removed(folder)
            _remove_tree(overlay, original, folder, args, kwargs)
            return None

        rmtree.avoids_symlink_attacks = getattr(original, "avoids_symlink_attacks", False)  # type: ignore[attr-defined]
        return rmtree

    for name in ("copyfile", "copy", "copy2"):
        replace(shutil, name, copying)
    replace(shutil, "rmtree", removing)


def _remove_tree(overlay: FileOverlay, original: Callable[..., Any], folder: str, args: Any, kwargs: Any) -> None:
    """Remove the trial's files; hide the user's files and their folders."""
    redirected = overlay.below(folder)
    if redirected:
        original(overlay.folder + folder, ignore_errors=True)
        overlay.write_journal("forget", redirected)
    hidden = [path for path in overlay.hidden if path.startswith(folder + os.sep)]
    users = overlay.users_files(folder) + hidden
    is_trials = folder in overlay.made_folders or overlay.is_exempt(folder)
    if not users and is_trials:
        original(folder, *args, **kwargs)
        return
    kept = {folder, *users}
    for path in users:
        while (path := os.path.dirname(path)) != folder:
            kept.add(path)
    _remove_all_but(kept, folder, _error_rules(*args, **kwargs))
    overlay.hide(path for path in kept if path not in overlay.hidden)


_OnError = Callable[[Any, str, OSError], object]


def _remove_all_but(kept: set[str], folder: str, on_error: _OnError | None) -> None:
    """Remove the content of a folder, which other ranks may be removing too. With `on_error` None, ignore errors."""

    def attempt(remove: Callable[[str], object], path: str) -> None:
        try:
            remove(path)
        except OSError as error:
            if on_error is not None:
                on_error(remove, path, error)

    for root, folders, names in os.walk(folder, topdown=False):
        for path in (os.path.join(root, name) for name in names):
            if path not in kept:
                attempt(os.remove, path)
        for path in (os.path.join(root, name) for name in folders):
            if path not in kept and not os.path.islink(path):
                attempt(os.rmdir, path)


def _error_rules(ignore_errors: bool = False, onerror: Any = None, *, onexc: Any = None, **_: Any) -> _OnError | None:
    """Return what the arguments of `shutil.rmtree` say to do with an error; None if they ignore it."""
    if ignore_errors:
        return None

    def on_error(function: Any, path: str, error: OSError) -> None:
        if onexc is not None:
            onexc(function, path, error)
        elif onerror is not None:
            onerror(function, path, sys.exc_info())
        else:
            raise error

    return on_error
