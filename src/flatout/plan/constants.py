"""The model's few constants: how far real kernels and links stay behind the vendor's numbers.

Each has a prior, from physics or from published measurements, and is fitted to published runs in `constants.toml` by
`flatout plan evaluate RUNS.csv --fit`. All are positive and are fitted as logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt

_FILE = Path(__file__).with_name("constants.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Shares of a rate, multiples of a time, or seconds."""

    matmul: float = 0.95  # of the best product's rate that large products inside a model reach
    balance: float = 1.0  # memory traffic of a product, in passes over its three matrices
    waves: float = 0.3  # of the loss from a last, partly filled wave of tiles that shows
    flash: float = 0.55  # rate of fused attention, of the same rate
    flash_early: float = 0.4  # the same of FlashAttention 1 and 2
    scores: float = 0.5  # rate of unfused attention's products
    alignment: float = 1.0  # power of 8 / (largest power of 2 in the head's size) by which its products slow down
    elementwise: float = 1.0  # time of norms, activations, dropout and residuals, of their traffic's
    eager: float = 2.0  # the same, of software that fuses none of them, over one that does
    cast: float = 1.0  # the same of quantisation
    launch_s: float = 3e-6  # between kernels
    link: float = 0.7  # of the rate of NVLink that a collective reaches
    nic: float = 0.8  # of the network's
    latency: float = 1.0  # of NCCL's own table of latencies
    overlap: float = 0.6  # of a collective that compute can hide which it hides
    tensor_overlap: float = 0.5  # of tensor-parallel communication that software with such an overlap hides
    sends: float = 0.5  # of the pipeline's transfers in steady state that are exposed
    jitter: float = 0.01  # of the step, for each doubling of the number of nodes
    low: float = 0.9  # reached in fp8 and fp4 products, of what 16-bit ones reach of theirs
    update: float = 1.5  # time of the optimizer, of its traffic's


NAMES = tuple(field.name for field in fields(Constants))
# Standard deviation of the logarithm before any run was seen: 0.2 is "known within 20 %".
PRIOR_SD = {
    "matmul": 0.1,
    "balance": 0.5,
    "waves": 0.7,
    "flash": 0.3,
    "flash_early": 0.3,
    "scores": 0.4,
    "alignment": 0.5,
    "elementwise": 0.3,
    "eager": 0.3,
    "cast": 0.5,
    "launch_s": 0.7,
    "link": 0.25,
    "nic": 0.4,
    "latency": 0.5,
    "overlap": 0.4,
    "tensor_overlap": 0.3,
    "sends": 0.7,
    "jitter": 0.8,
    "low": 0.2,
    "update": 0.5,
}
PRIOR = Constants()


def to_logs(constants: Constants) -> npt.NDArray[np.float64]:
    """In the order of `NAMES`."""
    return np.log([getattr(constants, name) for name in NAMES])


def from_logs(logs: npt.NDArray[np.float64]) -> Constants:
    """The inverse of `to_logs`."""
    return Constants(**dict(zip(NAMES, map(float, np.exp(logs)), strict=True)))
