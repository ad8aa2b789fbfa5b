"""The output of decoding and input of `table`: columns in pieces, and the dictionaries that their codes refer to."""

from __future__ import annotations

from collections import Counter
from typing import Any, TypeVar

import msgspec
from numpy.typing import NDArray

from flatout.records.events import CollectiveArgs

Columns = dict[str, NDArray[Any]]  # one array per column of the event table
Key = TypeVar("Key")


class Codes(dict[Key, int]):
    """A dictionary that numbers its keys in the order of first lookup."""

    def __missing__(self, key: Key) -> int:
        code = self[key] = len(self)
        return code


class Dictionaries(msgspec.Struct, kw_only=True):
    """The final state of one decoder: the keys of its dictionaries by code, and its counts."""

    names: list[str]
    threads: list[tuple[int | str, int | str]]
    shapes: list[bytes]
    collectives: list[CollectiveArgs]
    dropped: Counter[str]
    damage: Counter[str]
    unknown_categories: set[str]


class Decoded(msgspec.Struct, kw_only=True):
    """A decoded file: the columns of its pieces in file order, and the dictionaries of each decoder."""

    pieces: list[Columns]
    decoder_of_piece: list[int]
    decoders: list[Dictionaries]

    @property
    def dropped(self) -> Counter[str]:
        return sum((decoder.dropped for decoder in self.decoders), Counter())

    @property
    def damage(self) -> Counter[str]:
        return sum((decoder.damage for decoder in self.decoders), Counter())

    @property
    def unknown_categories(self) -> set[str]:
        return set().union(*(decoder.unknown_categories for decoder in self.decoders))
