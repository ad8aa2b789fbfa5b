"""A trial's checkpoints go elsewhere: to FLATOUT_DIVERT/<the absolute path>, never onto a file of the user's.

What `torch.save` writes to a path and what `torch.distributed.checkpoint` writes to a folder is diverted. When the
script then loads, opens for reading, looks at, renames, copies or removes a file that was diverted in this process, it
gets the diverted one, and a new name is diverted as well. Files that were there can still be read. Out: a line in
`diverted-<host>-<pid>.jsonl` for each path. Not diverted: what a script writes by `open`, or by another library.
"""

from __future__ import annotations

import builtins
import json
import os
import shutil
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import torch

from flatout.inside.log import LOG
from flatout.inside.patches.imports import after_import

VARIABLE = "FLATOUT_DIVERT"


class Diverted:
    """Paths of this process, as the script names them (made absolute), that lie below `folder` in truth."""

    def __init__(self, folder: Path, recording: Path | None) -> None:
        self.folder = os.path.abspath(folder)
        self._recording = recording
        self.paths: set[str] = set()

    def target(self, path: Any) -> str:
        """Where a file of this name is written to. Its own folder must be there, as without us."""
        absolute = os.path.abspath(os.fsdecode(path))
        if absolute.startswith(self.folder + os.sep):
            return absolute
        target = self.folder + absolute
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if absolute not in self.paths:
            existed = os.path.exists(absolute)
            self.paths.add(absolute)
            self._tell(absolute, target, existed=existed)
        return target

    def place(self, path: Any) -> Any:
        """Where the file of this name is to be found now."""
        if not self.paths or not isinstance(path, (str, bytes, os.PathLike)):
            return path
        absolute = os.path.abspath(os.fsdecode(path))
        return self.folder + absolute if absolute in self.paths else path

    def is_diverted(self, path: Any) -> bool:
        return bool(self.paths) and self.place(path) is not path

    def forget(self, path: Any) -> None:
        self.paths.discard(os.path.abspath(os.fsdecode(path)))

    def _tell(self, path: str, target: str, *, existed: bool) -> None:
        if self._recording is None:
            return
        try:
            name = f"diverted-{os.uname().nodename}-{os.getpid()}.jsonl"
            with (self._recording / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps({"path": path, "diverted_to": target, "existed": existed}) + "\n")
        except OSError:
            LOG.error("telling what was diverted")


def divert(recording: Path | None) -> None:
    folder = os.environ.get(VARIABLE)
    if not folder:
        return
    diverted = Diverted(Path(folder), recording)
    _patch_torch(diverted)
    _patch_reading(diverted)
    _patch_names(diverted)
    after_import("torch.distributed.checkpoint.filesystem", lambda module: _patch_distributed(diverted, module))


def _patch_torch(diverted: Diverted) -> None:
    original_save, original_load = torch.save, torch.load

    @wraps(original_save)
    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, (str, os.PathLike)) and os.path.isdir(os.path.dirname(os.path.abspath(f))):
            f = diverted.target(f)
        return original_save(obj, f, *args, **kwargs)

    @wraps(original_load)
    def load(f: Any, *args: Any, **kwargs: Any) -> Any:
        return original_load(diverted.place(f), *args, **kwargs)

    torch.save = torch.serialization.save = save
    torch.load = torch.serialization.load = load


def _patch_reading(diverted: Diverted) -> None:
    original_open, original_stat = builtins.open, os.stat

    @wraps(original_open)
    def open_(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
        if diverted.paths and isinstance(mode, str) and not set(mode) & set("wax+"):
            file = diverted.place(file)
        return original_open(file, mode, *args, **kwargs)

    @wraps(original_stat)
    def stat(path: Any, *args: Any, **kwargs: Any) -> Any:
        return original_stat(diverted.place(path) if diverted.paths else path, *args, **kwargs)

    builtins.open = open_
    os.stat = stat


def _patch_names(diverted: Diverted) -> None:
    def moving(original: Callable[..., Any], *, is_copy: bool) -> Callable[..., Any]:
        @wraps(original)
        def moved(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if not diverted.is_diverted(src):
                return original(src, dst, *args, **kwargs)
            if os.path.isdir(dst) and original.__module__ == "shutil":
                dst = os.path.join(os.fsdecode(dst), os.path.basename(os.fsdecode(src)))
            source = diverted.place(src)
            result = original(source, diverted.target(dst), *args, **kwargs)
            if not is_copy:
                diverted.forget(src)
            return dst if result is not None else None

        return moved

    def removing(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def removed(path: Any, *args: Any, **kwargs: Any) -> Any:
            place = diverted.place(path)
            result = original(place, *args, **kwargs)
            if place is not path:
                diverted.forget(path)
            return result

        return removed

    # The whole copies first: inside, they call those below with names that are in their place already.
    for name in ("copyfile", "copy", "copy2", "move"):
        setattr(shutil, name, moving(getattr(shutil, name), is_copy=name != "move"))
    for name in ("rename", "replace"):
        setattr(os, name, moving(getattr(os, name), is_copy=False))
    for name in ("remove", "unlink"):
        setattr(os, name, removing(getattr(os, name)))


def _patch_distributed(diverted: Diverted, module: Any) -> None:
    """Writers get their folder when they are made, or with a checkpoint's name at each save; readers likewise."""
    for name, find in (("FileSystemWriter", diverted.target), ("FileSystemReader", diverted.place)):
        kind = getattr(module, name, None)
        if kind is not None:
            _patch_storage(kind, find)


def _patch_storage(kind: Any, find: Callable[[Any], Any]) -> None:
    original_init, original_reset = kind.__init__, kind.reset

    @wraps(original_init)
    def init(self: Any, path: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, find(path), *args, **kwargs)

    @wraps(original_reset)
    def reset(self: Any, checkpoint_id: Any = None) -> None:
        original_reset(self, checkpoint_id if checkpoint_id is None else find(checkpoint_id))

    kind.__init__, kind.reset = init, reset
