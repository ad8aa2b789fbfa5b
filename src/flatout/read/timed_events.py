"""Decode trace events of one type from text that may be damaged, and place their times, which are in microseconds.

In: the text of some events, without the brackets around them. Out: structs of the reader's type, and integer ns. What
cannot be read is counted by the keys of `quality.DAMAGE`. Readers of Kineto's traces, whose times need decimals, have
`columns` and `times`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import GenericAlias
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatout.read import lenient
from flatout.read.schema import UNREADABLE
from flatout.read.times import MAX_US, to_ns

Event = TypeVar("Event", bound=msgspec.Struct)
Fields = dict[str, Any]


class EventDecoder(Generic[Event]):
    """Decodes the events of a reader. Not strict, it reads numbers that are written as texts, too.

    `repair` changes the fields of an event of a block that cannot be decoded at once, before they are read one by one.
    """

    def __init__(self, kind: type[Event], *, is_strict: bool = True, repair: Callable[[Fields], Fields] = dict) -> None:
        self._kind = kind
        self._repair = repair
        decoder = msgspec.json.Decoder(GenericAlias(list, (kind,)), strict=is_strict)
        self._decode: Callable[[bytes], list[Event]] = decoder.decode

    def events(self, block: bytes, damage: Counter[str]) -> list[Event]:
        """Return the events of a block; of a damaged one those that can be read."""
        try:
            return self._decode(b"".join((b"[", block, b"]")))
        except UNREADABLE:
            found = [self._converted(each, damage) for each in lenient.objects(block, damage)]
            return [event for event in found if event is not None]

    def _converted(self, fields: Fields, damage: Counter[str]) -> Event | None:
        try:
            return msgspec.convert(self._repair(fields), self._kind, strict=False)
        except (msgspec.ValidationError, ValueError, OverflowError, RecursionError):
            damage["unreadable"] += 1
            return None


def is_placed(time_us: float) -> bool:
    """Return whether a time can be placed: it is not below 0, not NaN, and its ns fit into 63 bits."""
    return 0 <= time_us < MAX_US


def spans_ns(starts_us: ArrayLike, ends_us: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return starts and durations. Ends are rounded as starts are, so that events that touch still do."""
    start_ns = to_ns(np.asarray(starts_us, np.float64))
    return start_ns, to_ns(np.asarray(ends_us, np.float64)) - start_ns
