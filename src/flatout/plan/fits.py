"""Estimate the probability that a layout runs out of memory, and correct it with runs whose outcome is known.

The counted bytes are uncertain by part: model states are nearly exact, activations and logits depend on what a
framework keeps. Each part's relative error is a normally distributed unknown, common to all layouts of one software;
what a layout needs beyond that is noise. So the logarithm of the need is linear in these errors, weighted by the parts'
shares, and a few known outcomes correct them: a measured peak by its value, a run that fitted or ran out of memory by
the side of the limit on which it was. What ran also proves itself, and every layout that needs no more of any part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr  # type: ignore[import-untyped]

from flatout.plan.inputs import Column, CostModelInputs
from flatout.plan.memory import PARTS, MemoryConstants, MemoryEstimate, memory

Array = npt.NDArray[np.float64]

# Standard deviation of the logarithm of the need by part, between the software of two sources, and of one layout. Peaks
# of sources that the constants were not fitted to differ as much (docs/concepts/planning.md).
PART_SD = {
    "weights": 0.05,
    "gradients": 0.10,
    "optimizer": 0.05,
    "activations": 0.12,
    "logits": 0.20,
    "overhead": 0.40,
}
COMMON_SD = 0.05
LAYOUT_SD = 0.05
PEAK_SD = 0.04  # a measured peak contains what the allocator had not needed yet, and misses what was not sampled
# The driver keeps some memory for itself, and an allocator cannot fill the rest to the last byte.
USABLE = 0.97
# A layout is called safe below this probability, unless `--risk` says otherwise.
SAFE = 0.10
# Probability for a layout that needs no more of any part than one that ran; the complement for one that needs no less
# than one that ran out of memory. It is not 0, because the next run may fragment memory in another way.
PROVEN = 0.01
_ROUNDING = 1e-6


class Outcome(NamedTuple):
    """What is known of one run's memory: its measured peak in bytes, if any, and whether it ran out of memory."""

    peak_bytes: float | None
    ran_out: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCalibration:
    """The memory model's constants, the errors of its parts, and the runs whose outcome is known."""

    constants: MemoryConstants = field(default_factory=MemoryConstants)
    means: Array = field(default_factory=lambda: np.zeros(len(PARTS) + 1))
    covariance: Array = field(default_factory=lambda: np.diag([*(PART_SD[part] ** 2 for part in PARTS), COMMON_SD**2]))
    ran: tuple[tuple[float, ...], ...] = ()  # the GPU's memory and the bytes of each part of runs that ran
    ran_out: tuple[tuple[float, ...], ...] = ()  # the same of runs that ran out of memory


def out_of_memory_probability(
    inputs: CostModelInputs, calibration: MemoryCalibration, estimate: MemoryEstimate | None = None
) -> Array:
    """Return the probability for each row; `estimate` is the memory of each row, if already computed."""
    if estimate is None:
        estimate = memory(inputs, calibration.constants)
    shares = _shares(estimate)
    logs = np.log(estimate.total) + np.log1p(-calibration.constants.returned) + shares @ calibration.means
    variances = np.einsum("ri,ij,rj->r", shares, calibration.covariance, shares) + LAYOUT_SD**2
    limits = np.log(USABLE * np.asarray(inputs.memory))
    probability = np.asarray(ndtr((logs - limits) / np.sqrt(variances)), dtype=np.float64)
    return _with_proofs(probability, inputs, estimate, calibration)


def with_outcomes(inputs: CostModelInputs, outcomes: Iterable[Outcome], before: MemoryCalibration) -> MemoryCalibration:
    """Return the calibration corrected by runs whose outcome is known, one row of the inputs per run.

    A run on one side of the limit cuts the normal distribution of its need off; the cut distribution is replaced by the
    normal one with the same mean and variance, one run after the other.
    """
    estimate = memory(inputs, before.constants)
    shares = _shares(estimate)
    needs = _needs(inputs, estimate)
    limits = np.log(USABLE * np.broadcast_to(inputs.memory, len(needs)))
    means, covariance = before.means.copy(), before.covariance.copy()
    ran, ran_out = dict.fromkeys(before.ran), dict.fromkeys(before.ran_out)
    for row, outcome in enumerate(outcomes):
        kind = tuple(map(float, needs[row]))
        (ran_out if outcome.ran_out else ran)[kind] = None
        share = shares[row]
        noise_sd = LAYOUT_SD if outcome.peak_bytes is None else PEAK_SD
        expected = float(np.log(estimate.total[row]) + share @ means)
        variance = float(share @ covariance @ share) + noise_sd**2
        if outcome.peak_bytes is None:
            limit = float(limits[row]) - float(np.log1p(-before.constants.returned))
            mean, remaining = _cut(expected, variance, limit, is_above=outcome.ran_out)
        else:
            mean, remaining = float(np.log(outcome.peak_bytes)), 0.0
        gain = covariance @ share / variance
        means = means + gain * (mean - expected)
        covariance = covariance + np.outer(gain, gain) * (remaining - variance)
    return replace(before, means=means, covariance=covariance, ran=tuple(ran), ran_out=tuple(ran_out))


def _cut(mean: float, variance: float, limit: float, *, is_above: bool) -> tuple[float, float]:
    """Return the mean and variance of a normal distribution of which only one side of a limit is left."""
    deviation = variance**0.5
    side = -1.0 if is_above else 1.0
    distance = side * (limit - mean) / deviation
    ratio = float(np.exp(-0.5 * distance**2 - 0.5 * np.log(2.0 * np.pi) - log_ndtr(distance)))
    return mean - side * deviation * ratio, variance * (1.0 - ratio * (distance + ratio))


def _shares(estimate: MemoryEstimate) -> Array:
    """Return each part's share of the total, one row per layout, and 1 for the error common to all parts."""
    count = np.size(estimate.total)
    columns = [np.broadcast_to(estimate.parts[part] / estimate.total, (count,)) for part in PARTS]
    return np.stack([*columns, np.ones(count)], axis=1)


def _needs(inputs: CostModelInputs, estimate: MemoryEstimate) -> Array:
    """Return the GPU's memory and the bytes of each part, one row per layout."""
    count = np.size(estimate.total)
    columns: list[Column] = [inputs.memory, *(estimate.parts[part] for part in PARTS)]
    return np.stack([np.broadcast_to(column, (count,)) for column in columns], axis=1)


def _with_proofs(
    probability: Array, inputs: CostModelInputs, estimate: MemoryEstimate, calibration: MemoryCalibration
) -> Array:
    """Return the probabilities with those of layouts that need no more, or no less, than a run with a known outcome."""
    if not calibration.ran and not calibration.ran_out:
        return probability
    needs = _needs(inputs, estimate)
    for kind in calibration.ran:
        has_room = needs[:, 0] >= kind[0] * (1.0 - _ROUNDING)
        needs_no_more = np.all(needs[:, 1:] <= np.array(kind[1:]) * (1.0 + _ROUNDING), axis=1)
        probability = np.where(has_room & needs_no_more, np.minimum(probability, PROVEN), probability)
    for kind in calibration.ran_out:
        has_no_more = needs[:, 0] <= kind[0] * (1.0 + _ROUNDING)
        needs_no_less = np.all(needs[:, 1:] >= np.array(kind[1:]) * (1.0 - _ROUNDING), axis=1)
        probability = np.where(has_no_more & needs_no_less, np.maximum(probability, 1.0 - PROVEN), probability)
    return probability
