"""Estimate the probability that a layout runs out of memory."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr  # type: ignore[import-untyped]

from flatout.plan.inputs import Column, CostModelInputs
from flatout.plan.memory import MemoryConstants, memory

# Standard deviation of the logarithm of measured over predicted peaks, between sources.
MEMORY_SD = 0.22
# The driver keeps some memory for itself, and an allocator cannot fill the rest to the last byte.
USABLE = 0.96
# A layout is called safe below this probability.
SAFE = 0.10


def out_of_memory_probability(
    inputs: CostModelInputs, constants: MemoryConstants, total: Column | None = None
) -> npt.NDArray[np.float64]:
    """Return the probability for each row; `total` is the bytes of each row, if already computed."""
    if total is None:
        total = memory(inputs, constants).total
    fill = total / (USABLE * inputs.memory)
    return np.asarray(ndtr(np.log(fill) / MEMORY_SD), dtype=np.float64)
