"""Let Python's `open`, and torchvision's reader of files, return what a pack holds.

In: calls of `open` for reading, with a path below the folder of a packed data set. Out: a file object in memory that
has the path which the script asked for as its name, and the packed content. Everything else is left to Python's own
`open`. Programs and compiled libraries that open files themselves, other than torchvision, read the files themselves.
"""

from __future__ import annotations

import builtins
import io
import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from flatout.inside.after_import import after_import
from flatout.inside.log import LOG
from flatout.inside.packed_reads.image_folder import serve_image_folder
from flatout.inside.packed_reads.lookup import Pack
from flatout.inside.protocol import Variable

_BINARY = {"rb", "br"}
_TEXT = {"r", "rt", "tr"}


class PackedFile(io.BytesIO):
    """The content of a file, in memory."""

    mode = "rb"

    def __init__(self, data: bytes, name: Any) -> None:
        super().__init__(data)
        self.name = name


class PackedReads:
    """The packs of this process."""

    def __init__(self, packs: list[Pack]) -> None:
        self._packs = packs

    def content(self, file: Any) -> bytes | None:
        """Return the packed content of a file; None if the file itself is to be read."""
        try:
            path = os.path.abspath(os.fsdecode(os.fspath(file)))
            pack = next((pack for pack in self._packs if pack.covers(path)), None)
            return pack.read(path) if pack is not None else None
        except (OSError, TypeError, ValueError):  # the script's own `open` says what is wrong
            return None


def hook_packed_reads() -> Callable[[], None] | None:
    """Read from the packs that FLATOUT_PACKED names; return a function that removes the hooks, if there are any."""
    setting = os.environ.get(Variable.PACKED)
    if not setting:
        return None
    packs = [Pack(Path(each["folder"]), each["source"]) for each in json.loads(setting)]
    reads = PackedReads(packs)
    originals = [(module, module.open) for module in (builtins, io)]
    for module, original in originals:
        module.open = _packed_open(reads, original)  # type: ignore[attr-defined]
    after_import("torchvision.datasets.folder", lambda module: serve_image_folder(module, packs))
    after_import("torchvision.io.image", lambda module: _serve_read_file(module, reads))

    def undo() -> None:
        for module, original in originals:
            module.open = original  # type: ignore[attr-defined]

    return undo


def _packed_open(reads: PackedReads, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def open_file(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        is_reading = mode in _BINARY or mode in _TEXT
        if not is_reading or isinstance(file, int) or len(args) > _OPENER or "opener" in kwargs:
            return original(file, mode, *args, **kwargs)
        data = reads.content(file)
        if data is None:
            return original(file, mode, *args, **kwargs)
        packed = PackedFile(data, file)
        if mode in _BINARY:
            return packed
        return _as_text(packed, *args, **kwargs)

    return open_file


def _as_text(
    packed: PackedFile,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,
) -> io.TextIOWrapper:
    del buffering, closefd
    return io.TextIOWrapper(packed, encoding, errors, newline)


_OPENER = 5  # the place of `opener` among the arguments after the mode: buffering, encoding, errors, newline, closefd


def _serve_read_file(module: Any, reads: PackedReads) -> None:
    """Serve `torchvision.io.read_file`, through which `read_image` and `decode_image` read a path."""
    original = getattr(module, "read_file", None)
    if original is None:
        LOG.write("this torchvision has no read_file")
        return

    @wraps(original)
    def read_file(path: Any) -> Any:
        import torch

        data = reads.content(path)
        return original(path) if data is None else torch.frombuffer(bytearray(data), dtype=torch.uint8)

    module.read_file = read_file
