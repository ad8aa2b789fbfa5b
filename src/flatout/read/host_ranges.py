"""Find the steps among ranges that a script annotated with names of its choice, such as NVTX and ROCTX ranges.

In: the names of ranges in order of their starts. Out: the numbers of those that are steps. A step is a range with a
number (`step 12`, `iteration_12`, `ProfilerStep#12`), or else each of at least three ranges with a step's name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flatout.records.events import NULL

STEP_NAME = "ProfilerStep#"
_UNKNOWN = -2
MIN_STEPS = 3  # of ranges without a number
_NUMBERED = re.compile(
    r"^(?:train(?:ing)?|global|profiler)?[ _-]?(?:step|iter(?:ation)?)[ _#:=-]*(\d{1,15})$", re.IGNORECASE
)
_UNNUMBERED = re.compile(r"^(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)$", re.IGNORECASE)


def steps_among(
    codes: NDArray[np.int64], names: Sequence[str], start_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the rows that are steps, and their numbers; `codes` are indices into `names`."""
    number_of = np.array([_number(name) for name in names], np.int64)
    if (number_of[codes] >= 0).any():
        rows = np.flatnonzero(number_of[codes] >= 0)
        rows = rows[np.argsort(start_ns[rows], kind="stable")]
        return rows, number_of[codes[rows]].tolist()
    rows = np.flatnonzero(number_of[codes] == _UNKNOWN)
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    counts = Counter(names[code] for code in codes[rows].tolist())
    name, count = counts.most_common(1)[0] if counts else ("", 0)
    if count < MIN_STEPS:
        return rows[:0], []
    is_name = np.array([each == name for each in names], np.bool_)
    rows = rows[is_name[codes[rows]]]
    return rows, list(range(len(rows)))


def _number(name: str) -> int:
    """Return the number of a step by its name; `_UNKNOWN` if a step has that name, `NULL` if not."""
    match = _NUMBERED.match(name)
    if match is not None:
        return int(match[1])
    return _UNKNOWN if _UNNUMBERED.match(name) else NULL
