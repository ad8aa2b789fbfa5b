"""The probability that a layout runs out of memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr  # type: ignore[import-untyped]

from flatout.plan.case import Case, Column
from flatout.plan.memory import MemoryConstants, memory

# Of the logarithm of measured over predicted peaks, between sources.
MEMORY_SD = 0.22
# The driver keeps some memory for itself, and an allocator cannot fill the rest to the last byte.
USABLE = 0.96
# A layout is called safe below this probability.
SAFE = 0.10


def out_of_memory_probability(
    case: Case, constants: MemoryConstants, total: Column | None = None
) -> npt.NDArray[np.float64]:
    """Of each row."""
    total = memory(case, constants).total if total is None else total
    return np.asarray(ndtr(np.log(total / (USABLE * case.memory)) / MEMORY_SD), dtype=np.float64)
