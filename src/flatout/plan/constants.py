"""The cost model's few constants: how far real kernels and links fall short of the vendor's numbers.

Each has a prior, from physics or from published measurements, and is fitted to published runs in `constants.json` by
`flatout plan evaluate RUNS.csv --fit`. All are positive and are fitted as logarithms.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Shares of a rate, multiples of a time, or seconds (`_s`)."""

    matmul: float = 0.95  # share of the best matmul's rate that large matmuls inside a model reach
    balance: float = 1.0  # memory traffic of a matmul, over that of reading and writing its three matrices once
    waves: float = 0.3  # share of the loss from a last, partly filled wave of tiles that shows
    flash: float = 0.55  # rate of fused attention, as a share of the same rate
    flash_early: float = 0.7  # the same for FlashAttention 2 on an A100 (arXiv 2307.08691: 190 of 312 TFLOP/s)
    flash_ported: float = 0.65  # part of that share on later GPUs (arXiv 2407.08608: 35 % of an H100's peak)
    flash_first: float = 0.5  # part of that share with FlashAttention 1 (arXiv 2307.08691: half the rate)
    scores: float = 0.5  # rate of unfused attention's matmuls
    alignment: float = 8.0  # slowdown by heads of a size that 8 does not divide: no matrix units, or half idle
    elementwise: float = 1.0  # time of norms, activations, dropout and residuals over their traffic's
    eager: float = 2.0  # the same where software fuses none of them, over where it does
    cast: float = 1.0  # the same for quantisation
    backward: float = 1.1  # time per operation of a backward matmul over a forward one's
    experts: float = 0.8  # share of a plain matmul's rate that one grouped by experts reaches
    launch_s: float = 3e-6  # gap between kernels
    host_s: float = 25e-6  # of the host per kernel, in Python: where the GPU is quicker, it waits
    link: float = 0.7  # share of NVLink's rate that a collective reaches
    nic: float = 0.8  # share of the network's
    exchange: float = 0.7  # time of the experts' dispatch and combine over their bytes' at those rates
    latency: float = 1.0  # multiple of NCCL's own table of latencies
    overlap: float = 0.8  # share of a collective that compute hides, of what it can hide
    expert_overlap: float = 0.5  # the same for the experts' dispatch and combine
    tensor_overlap: float = 0.7  # share of tensor-parallel communication that software with such an overlap hides
    sends: float = 0.5  # share of the pipeline's transfers in steady state that is exposed
    jitter: float = 0.01  # share of the step, for each doubling of the number of nodes
    low: float = 0.9  # share of the peak that fp8 and fp4 matmuls reach, over that of 16-bit ones
    update: float = 1.5  # time of the optimizer over its traffic's


NAMES = tuple(field.name for field in fields(Constants))
# Standard deviation of the logarithm before any run was seen: 0.2 is "known within 20 %".
PRIOR_SD = {
    "matmul": 0.1,
    "balance": 0.5,
    "waves": 0.7,
    "flash": 0.3,
    "flash_early": 0.2,
    "flash_ported": 0.2,
    "flash_first": 0.2,
    "scores": 0.4,
    "alignment": 0.4,
    "elementwise": 0.3,
    "eager": 0.3,
    "cast": 0.5,
    "backward": 0.08,
    "experts": 0.25,
    "launch_s": 0.7,
    "host_s": 0.4,
    "link": 0.25,
    "nic": 0.4,
    "exchange": 0.4,
    "latency": 0.5,
    "overlap": 0.4,
    "expert_overlap": 0.2,
    "tensor_overlap": 0.3,
    "sends": 0.7,
    "jitter": 0.8,
    "low": 0.2,
    "update": 0.5,
}
PRIOR = Constants()


def to_logs(constants: Constants) -> npt.NDArray[np.float64]:
    """Return the logarithms in the order of `NAMES`."""
    return np.log([getattr(constants, name) for name in NAMES])


def from_logs(logs: npt.NDArray[np.float64]) -> Constants:
    """Return the constants with these logarithms."""
    return Constants(**dict(zip(NAMES, map(float, np.exp(logs)), strict=True)))
