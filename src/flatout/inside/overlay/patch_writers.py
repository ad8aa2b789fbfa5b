"""Redirect the functions of compiled libraries that write files by name, which neither `open` nor `os` sees.

In: modules when the script imports them. Out: the same functions, with the path of the redirected file. A library or
function that is not in the tables below writes where the script wants it; the report on the tuning names such files.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any
from urllib.parse import quote, unquote

from flatout.inside.after_import import after_import
from flatout.inside.log import guarded
from flatout.inside.overlay.file_overlay import FileOverlay, is_path
from flatout.inside.protocol import OutputKind

# Functions and methods that replace the file named by one argument: module, name, position and keyword of it.
_WRITERS = (
    ("torch.autograd.profiler", "profile.export_chrome_trace", 1, "path"),
    ("pyarrow.parquet.core", "ParquetWriter.__init__", 1, "where"),
    ("pyarrow.feather", "write_feather", 1, "dest"),
    ("pyarrow.csv", "write_csv", 1, "output_file"),
    ("pyarrow.orc", "write_table", 1, "where"),
    ("pyarrow.ipc", "new_file", 0, "sink"),
    ("pyarrow.ipc", "new_stream", 0, "sink"),
    ("pyarrow", "output_stream", 0, "source"),
    ("pyarrow", "create_memory_map", 0, "path"),
    ("cv2", "imwrite", 0, "filename"),
    ("cv2", "imwritemulti", 0, "filename"),
    ("soundfile", "write", 0, "file"),
)
_SQLITE_COMPANIONS = ("-journal", "-wal", "-shm")


def patch_writers(overlay: FileOverlay) -> None:
    for module_name, name, position, keyword in _WRITERS:
        patch = partial(_patch_writer, overlay, name, position, keyword)
        after_import(module_name, guarded(patch))
    after_import("numpy.lib._datasource", guarded(_patch_numpy))
    after_import("sqlite3", guarded(partial(_patch_sqlite, overlay)))
    after_import("h5py", guarded(partial(_patch_h5py, overlay)))


def patch_mapped_files(overlay: FileOverlay, torch: Any) -> None:
    """Redirect a user's file that is mapped to be changed in place; other mappings only read."""
    for holder in (torch, torch.UntypedStorage):
        holder.from_file = _mapping(overlay, holder.from_file)


def _mapping(overlay: FileOverlay, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def from_file(filename: Any, shared: bool | None = False, *args: Any, **kwargs: Any) -> Any:
        if shared:
            filename = overlay.for_writing(filename, is_fresh=False)
        else:
            filename = overlay.locate_to_read(filename)
        return original(filename, shared, *args, **kwargs)

    return from_file


def _patch_writer(overlay: FileOverlay, name: str, position: int, keyword: str, module: Any) -> None:
    *owners, last = name.split(".")
    owner = module
    for part in owners:
        owner = getattr(owner, part, None)
    original = getattr(owner, last, None)
    if original is None:
        return

    @wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        path = args[position] if len(args) > position else kwargs.get(keyword)
        if is_path(path):
            location = overlay.for_writing(path, is_fresh=True)
            if len(args) > position:
                args = (*args[:position], location, *args[position + 1 :])
            else:
                kwargs[keyword] = location
        return original(*args, **kwargs)

    setattr(owner, last, write)


def _patch_numpy(module: Any) -> None:
    """Let `numpy.savetxt` call our `open` if numpy was imported before the hooks: it keeps the function in a table."""
    module._file_openers._file_openers[None] = io.open


def _patch_sqlite(overlay: FileOverlay, module: Any) -> None:
    original = module.connect

    @wraps(original)
    def connect(database: Any, *args: Any, **kwargs: Any) -> Any:
        return original(_database(overlay, database, is_uri=bool(kwargs.get("uri"))), *args, **kwargs)

    for holder in (module, module.dbapi2):
        holder.connect = connect


def _database(overlay: FileOverlay, database: Any, *, is_uri: bool) -> Any:
    """Return where a database and the files next to it are now."""
    if not is_path(database):
        return database
    name = os.fsdecode(database)
    if is_uri and name.startswith("file:"):
        path, _, query = name.removeprefix("file:").partition("?")
        if not path or "mode=memory" in query:
            return database
        location = _database(overlay, unquote(path), is_uri=False)
        return f"file:{quote(os.fsdecode(location))}" + (f"?{query}" if query else "")
    if name in ("", ":memory:"):
        return database
    overlay.note_reading(database)
    location = overlay.for_writing(database, is_fresh=False)
    is_in_place = location == database
    for companion in (overlay.name_of(name + end) for end in _SQLITE_COMPANIONS):
        if os.path.lexists(companion):
            overlay.for_writing(companion, is_fresh=False)
        elif is_in_place and not overlay.is_exempt(companion):
            overlay.report(companion, OutputKind.NEW, existed=False)
    return location


def _patch_h5py(overlay: FileOverlay, module: Any) -> None:
    original = module.File.__init__

    @wraps(original)
    def init(self: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        if is_path(name) and mode == "r":
            name = overlay.locate_to_read(name)
        elif is_path(name):
            if mode in ("a", "r+"):
                overlay.note_reading(name)
            is_new = mode in ("x", "w-")
            name = overlay.for_writing(name, is_fresh=mode == "w", is_new=is_new, must_exist=mode == "r+")
        original(self, name, mode, *args, **kwargs)

    module.File.__init__ = init
