"""Recognise an XSpace by its first bytes; `xspace` reads it."""

from __future__ import annotations

from typing import Any

from flatout.read import wire
from flatout.read.wire import WireError


def looks_like_xspace(head: bytes) -> bool:
    """Whether a file begins as an XSpace: with a plane that has an id or a name."""
    if len(head) < 4 or head[0] != 0x0A:
        return False
    padded = head + wire.PADDING
    try:
        size, at = wire.varint(padded, 1)
        first = next(wire.fields(padded, (at, len(head))), None)
    except WireError:
        return False
    is_id = first is not None and first[0] == 1 and isinstance(first[1], int)
    is_name = first is not None and first[0] == 2 and isinstance(first[1], tuple)
    return size > 0 and (is_id or is_name) and (is_id or _is_plane_name(padded, first))


def _is_plane_name(data: bytes, first: Any) -> bool:
    start, end = first[1]
    return data[start:end].isascii() and data[start:end].decode().isprintable()
