"""The constants of a served step: how far engines fall short of the vendors' numbers. Fitted to published results."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import msgspec

from flatout.input_files import read_bytes
from flatout.records.serving_plan import ServingAccuracy

_FILE = Path(__file__).with_name("constants.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """Shares of a rate, or seconds (`_s`). The defaults are the priors of the fit; all are positive."""

    memory: float = 0.75  # rate at which weights and caches are read, as a share of the memory's
    matmul: float = 0.75  # rate of matrix multiplications, as a share of the best one's
    low: float = 0.8  # the same for fp8 and fp4, in addition
    experts: float = 0.6  # the same for products of routed experts, in addition
    link: float = 0.7  # share of the links' rate that a reduction reaches
    reduction_s: float = 12e-6  # of one reduction over a group, without its bytes
    layer_s: float = 20e-6  # of one layer's kernels in a step, without their work: starts, and small operations
    expert_layer_s: float = 60e-6  # the same of a layer with routed experts, in addition: routing, sorting, dispatch
    step_s: float = 1.0e-3  # of the host in a step: scheduling, sampling
    request_s: float = 5e-6  # of the host for each request in a step


NAMES = tuple(field.name for field in fields(StepConstants))
# Prior standard deviation of each constant's logarithm.
PRIOR_SD = {
    "memory": 0.25,
    "matmul": 0.25,
    "low": 0.25,
    "experts": 0.6,
    "link": 0.4,
    "reduction_s": 0.4,
    "layer_s": 0.7,
    "expert_layer_s": 1.0,
    "step_s": 0.8,
    "request_s": 1.0,
}
# What an engine uses of a GPU's memory by default, and what it keeps of that for graphs, NCCL and its context, besides
# activations. Together with these vLLM left 4.2 and 5.0 GB of 90 % of an H100 by Qwen3-8B and its cache (silybench),
# and at most 3.4 GB by Qwen3-32B and one request of 32,100 tokens (GPUStack). Memory outside of torch was 0.1 to 0.6 GB
# in vLLM 0.11 and 1.9 to 3.8 GB in vLLM 0.6 (the sources of `catalog/serving_memory.toml`).
UTILISATION = 0.9
CONTEXT_BYTES = 1.7e9


class _Shipped(msgspec.Struct, frozen=True):
    constants: dict[str, float]
    accuracy: tuple[ServingAccuracy, ...]


@cache
def _shipped() -> _Shipped:
    return msgspec.json.decode(read_bytes(_FILE), type=_Shipped)


def shipped_constants() -> StepConstants:
    """Return the constants that were fitted to all published results."""
    return StepConstants(**_shipped().constants)


def shipped_accuracy(*, has_experts: bool) -> ServingAccuracy:
    """Return how wrong constants without a source's results are on that source's results, for models of this kind."""
    models = "experts" if has_experts else "dense"
    return next(accuracy for accuracy in _shipped().accuracy if accuracy.models == models)
