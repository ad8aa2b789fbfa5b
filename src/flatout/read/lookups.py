"""Columns of integers: from lists, the distinct ones, and the values that columns or dictionaries have for them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flatout.records.events import NULL

_MOST_PLACES_OF_ONE = 4  # of a table with a place for each number, instead of sorting
_FEW_PLACES = 1 << 16


def integers(values: ArrayLike) -> NDArray[np.int64]:
    """Return an array of the values; `NULL` for those that do not fit 64 bits."""
    if not isinstance(values, list):
        return np.asarray(values, np.int64)
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        fitting = [value if -(1 << 63) <= int(value) < 1 << 63 else NULL for value in values]
        return np.array(fitting, np.int64)


def distinct(values: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct values in order, and for each value its place among them."""
    if not len(values):
        return values, np.zeros(0, np.int64)
    lowest, highest = int(values.min()), int(values.max())
    num_places = highest - lowest + 1
    if num_places > max(_FEW_PLACES, _MOST_PLACES_OF_ONE * len(values)):
        found = np.unique(values)
        return found, np.searchsorted(found, values)
    offsets = values - lowest
    is_used = np.zeros(num_places, np.bool_)
    is_used[offsets] = True
    place = np.cumsum(is_used) - 1
    return np.flatnonzero(is_used) + lowest, place[offsets]


def is_among(values: NDArray[np.int64], members: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which of the values are among the members; fast for values that are nearly in order."""
    if not len(members):
        return np.zeros(len(values), np.bool_)
    ordered = np.sort(members)
    return np.asarray(ordered[np.searchsorted(ordered, values).clip(max=len(ordered) - 1)] == values)


def looked_up(ids: NDArray[np.int64], values: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the value of each key, whose id is the same; `NULL` for a key without one."""
    if not len(ids):
        return np.full(len(keys), NULL, np.int64)
    if (ids[1:] < ids[:-1]).any():
        order = np.argsort(ids, kind="stable")
        ids, values = ids[order], values[order]
    places = _places(ids, keys).clip(max=len(ids) - 1)
    return np.where(ids[places] == keys, values[places], NULL)


def _places(ids: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the place of each key among sorted ids, if it is there: at once if the ids have no gaps."""
    if int(ids[-1]) - int(ids[0]) == len(ids) - 1 and (ids[1:] != ids[:-1]).all():
        return np.asarray(keys.clip(ids[0], ids[-1]) - ids[0], np.int64)
    return np.searchsorted(ids, keys)


def mapped(keys: NDArray[np.int64], values: Mapping[int, int], *, keep: bool = False) -> NDArray[np.int64]:
    """Return the value of each key; for a key without one, `NULL`, or the key itself."""
    found, places = distinct(keys)
    return np.array([values.get(key, key if keep else NULL) for key in found.tolist()], np.int64)[places]
