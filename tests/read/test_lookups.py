"""Lookups of integers are those of numpy's `unique` and `isin`, and of a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from flatout.read.host_ranges import steps_among
from flatout.read.lookups import distinct, is_among, looked_up, mapped
from flatout.records.events import NULL

CASES = {
    "none": [],
    "dense": [3, 1, 2, 3, 3, 1],
    "with NULL": [NULL, 5, NULL, 4],
    "far apart": [1 << 62, -(1 << 62), 7, 1 << 62],
    "in order": [10, 11, 12, 13],
    "with gaps": [10, 12, 17, 30],
}


@pytest.mark.parametrize("case", CASES)
def test_lookups_are_those_of_numpy_and_of_a_dictionary(case: str) -> None:
    values = np.array(CASES[case], np.int64)
    numbers, places = distinct(values)
    expected, inverse = np.unique(values, return_inverse=True)
    assert (numbers.tolist(), places.tolist()) == (expected.tolist(), inverse.tolist())
    keys = np.array([3, 1, NULL, 12, 1 << 62, -(1 << 62), 14, 31], np.int64)
    assert is_among(keys, values).tolist() == np.isin(keys, values).tolist()
    of_id = {number: 100 + place for place, number in enumerate(numbers.tolist())}
    of_numbers = 100 + np.arange(len(numbers), dtype=np.int64)
    found = [of_id.get(key, NULL) for key in keys.tolist()]
    assert looked_up(numbers, of_numbers, keys).tolist() == found
    assert looked_up(numbers[::-1], of_numbers[::-1], keys).tolist() == found
    assert mapped(keys, of_id).tolist() == found
    assert mapped(keys, of_id, keep=True).tolist() == [of_id.get(key, key) for key in keys.tolist()]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["step 7", "step", "step", "step", "step 6"], ([4, 0], [6, 7])),  # numbered ones, if there are any
        (["step", "other", "step", "step"], ([3, 2, 0], [0, 1, 2])),
        (["step", "other", "step"], ([], [])),  # too few
        (["iteration", "step", "step", "step", "iteration"], ([3, 2, 1], [0, 1, 2])),  # the name with the most
    ],
)
def test_steps_are_ranges_with_a_number_or_else_those_of_the_commonest_name(
    names: list[str], expected: tuple[list[int], list[int]]
) -> None:
    distinct_names = sorted(set(names))
    codes = np.array([distinct_names.index(name) for name in names], np.int64)
    start_ns = np.arange(len(names), 0, -1)  # the last range is the first in time
    rows, numbers = steps_among(codes, distinct_names, start_ns)
    assert (rows.tolist(), numbers) == expected
