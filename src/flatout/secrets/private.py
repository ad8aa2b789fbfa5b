"""Create files that may hold commands or messages of the user's job: only the user can read them (mode 600).

`mask_file` is for the output of a job, which the job itself wrote.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.secrets.masker import Masker

PRIVATE = 0o600
_CHUNK_BYTES = 1 << 20


def open_private(path: str | os.PathLike[str], mode: str, *, encoding: str | None = None) -> Any:
    """Open a file as `open` does; if it is created, only the user can read it."""
    return open(path, mode, encoding=encoding, opener=_opener)


def write_private(path: Path, data: bytes | str) -> None:
    """Write a file that only the user can read. What has its name is removed, and never written to or waited for.

    In a folder that others can write to, it can be a link to a file of the user's, or a pipe that nobody reads.
    """
    content = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    with suppress(FileNotFoundError):
        os.unlink(path)
    with open_private(path, "xb") as file:
        os.fchmod(file.fileno(), PRIVATE)  # also with a umask that takes the user's own rights
        file.write(content)


def mask_file(path: Path, masker: Masker) -> None:
    """Mask the secrets in a text file that is complete; do nothing if there is none or it cannot be rewritten."""
    partial = path.with_name(f".{path.name}.masked")
    try:
        with open(path, "rb") as source, open_private(partial, "wb") as target:
            for lines in iter(lambda: source.readlines(_CHUNK_BYTES), []):
                target.write(_masked_bytes(b"".join(lines), masker))
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)


def _masked_bytes(data: bytes, masker: Masker) -> bytes:
    """Mask the secrets in `data`; bytes that are not UTF-8 are unchanged."""
    return masker.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, PRIVATE)
