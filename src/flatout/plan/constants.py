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
    """The constants: shares of a rate, multiples of a time, or seconds (`_s`)."""

    matmul: float = 0.95  # rate of large matmuls inside a model, as a share of the best matmul's rate
    balance: float = 1.0  # memory traffic of a matmul, relative to reading or writing each of its three matrices once
    waves: float = 0.3  # exposed share of the loss from a partly filled last wave of tiles
    flash: float = 0.55  # rate of fused attention, as a share of the best matmul's rate
    flash_early: float = 0.7  # the same for FlashAttention 2 on an A100 (arXiv 2307.08691: 190 of 312 TFLOP/s)
    flash_ported: float = 0.65  # part of that share on later GPUs (arXiv 2407.08608: 35 % of an H100's peak)
    flash_first: float = 0.5  # part of that share with FlashAttention 1 (arXiv 2307.08691: half the rate)
    scores: float = 0.5  # rate of unfused attention's matmuls
    alignment: float = 8.0  # slowdown by heads of a size that 8 does not divide: no matrix units, or half idle
    elementwise: float = 1.0  # time of norms, activations, dropout and residuals, relative to their traffic's
    eager: float = 2.0  # factor on that time if the software does not fuse these operations
    cast: float = 1.0  # time of quantisation, relative to its traffic's
    backward: float = 1.1  # time per operation of a backward matmul, relative to a forward matmul
    experts: float = 0.8  # rate of a matmul grouped by experts, as a share of a plain matmul's rate
    launch_s: float = 3e-6  # gap between kernels
    host_s: float = 25e-6  # host time per kernel launched from Python: if the GPU is faster, it waits
    link: float = 0.7  # share of NVLink's rate that a collective reaches
    nic: float = 0.8  # share of the network's rate that a collective reaches
    exchange: float = 0.7  # time of the experts' dispatch and combine, relative to their bytes at those rates
    latency: float = 1.0  # multiple of NCCL's own table of latencies
    overlap: float = 0.8  # share that compute hides of the part of a collective that it could hide
    expert_overlap: float = 0.5  # the same for the experts' dispatch and combine
    tensor_overlap: float = 0.7  # share of tensor-parallel communication that software with such an overlap hides
    sends: float = 0.5  # exposed share of the pipeline's steady-state transfers
    jitter: float = 0.01  # share of the step added by each doubling of the number of nodes
    low: float = 0.9  # share of the peak that fp8 and fp4 matmuls reach, relative to that of 16-bit matmuls
    update: float = 1.5  # time of the optimizer, relative to its traffic's


NAMES = tuple(field.name for field in fields(Constants))
# Prior standard deviation of each constant's logarithm: 0.2 means "known within 20 %".
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
    """Return the constants' logarithms in the order of `NAMES`."""
    return np.log([getattr(constants, name) for name in NAMES])


def from_logs(logs: npt.NDArray[np.float64]) -> Constants:
    """Return the constants with these logarithms."""
    return Constants(**dict(zip(NAMES, map(float, np.exp(logs)), strict=True)))
