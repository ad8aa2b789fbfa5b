"""How many shards an iterable data set has: files that its workers divide among themselves.

In: a data set of Hugging Face, WebDataset or MosaicML, or one that is built of such. Out: the number; None if nothing
in it says so. Only attributes are read, and nothing is iterated.
"""

from __future__ import annotations

from typing import Any

_NUMBERS = ("num_shards", "n_shards")
_LISTS = ("urls", "shards", "shard_list", "datapipes")
_INNER = ("pipeline", "dataset", "source", "source_dataset", "datapipe", "src_dataset")
_MAX_DEPTH = 6
_MAX_PARTS = 20


def num_shards(dataset: Any, depth: int = 0) -> int | None:
    """Return the number of shards of a data set, or of the innermost one that it is built of."""
    for name in _NUMBERS:
        value = getattr(dataset, name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    for name in _LISTS:
        value = getattr(dataset, name, None)
        if isinstance(value, (list, tuple)) and value:
            return len(value)
    if depth >= _MAX_DEPTH:
        return None
    for name in _INNER:
        inner = getattr(dataset, name, None)
        parts = inner if isinstance(inner, (list, tuple)) else [inner]
        for part in parts[:_MAX_PARTS]:
            number = None if part is None else num_shards(part, depth + 1)
            if number is not None:
                return number
    return None
