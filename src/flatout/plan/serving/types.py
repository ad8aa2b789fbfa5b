"""The types of weights and caches that engines serve in: their bytes, and the type of the multiplications."""

from __future__ import annotations

from typing import NamedTuple

from flatout.errors import UsageError


class WeightType(NamedTuple):
    """A type of the layers' matrices. Tables of the vocabulary and norms stay in 16 bits, as engines keep them."""

    bytes_per_weight: float  # with the scales
    computes_in: str  # type of the matrix multiplications, of the GPU's peaks
    is_of_feed_forward: bool = False  # the projections of attention stay in 16 bits


# int4: one 16-bit scale and one 4-bit zero point for 128 weights (AWQ, GPTQ); fp4: one 8-bit scale for 16 (NVFP4).
# Types whose products are computed in 16 bits are stored only: the weights are widened when they are read.
WEIGHTS = {
    "fp32": WeightType(4.0, "fp32"),
    "bf16": WeightType(2.0, "bf16"),
    "fp16": WeightType(2.0, "fp16"),
    "fp8": WeightType(1.0, "fp8"),
    "fp8-ffn": WeightType(1.0, "fp8", is_of_feed_forward=True),
    "int8": WeightType(1.0, "bf16"),
    "int4": WeightType(0.5 + 2.5 / 128, "bf16"),
    "fp4": WeightType(0.5 + 1 / 16, "fp4"),
}
CACHES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0}
WIDE_BYTES = 2.0  # of an element that is not quantised


def weight_type(name: str) -> WeightType:
    """Return the type of weights. Raise UsageError if there is no such type."""
    known = WEIGHTS.get(name)
    if known is None:
        raise UsageError(f"`--weights` must be one of {', '.join(WEIGHTS)}, but got `{name}`")
    return known


def cache_bytes(name: str) -> float:
    """Return the bytes of one element of the cache. Raise UsageError if there is no such type."""
    known = CACHES.get(name)
    if known is None:
        raise UsageError(f"`--kv-cache` must be one of {', '.join(CACHES)}, but got `{name}`")
    return known


def wide_bytes(name: str) -> float:
    """Return the bytes of an element of what stays unquantised with weights of this type."""
    return 4.0 if name == "fp32" else WIDE_BYTES
