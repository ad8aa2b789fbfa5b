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

STEP_NAME = "ProfilerStep#"
MIN_STEPS = 3  # of ranges without a number
_NUMBERED = re.compile(
    r"^(?:train(?:ing)?|global|profiler)?[ _-]?(?:step|iter(?:ation)?)[ _#:=-]*(\d{1,15})$", re.IGNORECASE
)
_UNNUMBERED = re.compile(r"^(?:train(?:ing)?[ _-]?)?(?:step|iter(?:ation)?)$", re.IGNORECASE)


def step_numbers(names: Sequence[str]) -> dict[int, int]:
    """Return the number of each range that is a step, by its place."""
    numbered = {place: int(match[1]) for place, name in enumerate(names) if (match := _NUMBERED.match(name))}
    if numbered:
        return numbered
    counts = Counter(name for name in names if _UNNUMBERED.match(name))
    if not counts:
        return {}
    name, count = counts.most_common(1)[0]
    if count < MIN_STEPS:
        return {}
    places = [place for place, each in enumerate(names) if each == name]
    return {place: number for number, place in enumerate(places)}


def steps_among(
    codes: NDArray[np.int64], names: Sequence[str], start_ns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[int]]:
    """Return the rows that are steps, and their numbers; `codes` are indices into `names`."""
    may_be_step = np.array([bool(_NUMBERED.match(name) or _UNNUMBERED.match(name)) for name in names], np.bool_)
    rows = np.flatnonzero(may_be_step[codes]) if len(codes) else np.zeros(0, np.int64)
    rows = rows[np.argsort(start_ns[rows], kind="stable")]
    numbers = step_numbers([names[code] for code in codes[rows].tolist()])
    return rows[list(numbers)], list(numbers.values())
