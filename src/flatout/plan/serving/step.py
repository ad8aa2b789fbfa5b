"""The time of one step of a continuously batching engine, and of a prompt.

A step makes one token for each request that it holds. It reads every weight that one of them uses and all their caches;
if the matrix multiplications take longer than the weights, it takes as long as they do. A group of GPUs adds two
reductions a layer. A prompt costs its matrix multiplications, its attention and the bytes of the same reductions.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.errors import InputError
from flatout.plan.inputs import ASSUMED_SHARE
from flatout.plan.serving.activations import LargestStep, activation_bytes
from flatout.plan.serving.constants import CONTEXT_BYTES, UTILISATION, StepConstants
from flatout.plan.serving.model import ServedModel
from flatout.plan.serving.types import cache_bytes, weight_type, wide_bytes
from flatout.records.plan import ClusterSpec

_LOW = ("fp8", "fp4")
_USUAL_STEP = LargestStep()
MOST_REQUESTS = 1024  # that an engine holds at a time: vLLM's default on GPUs of 70 GB and more


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """One copy of a model on a group of GPUs, in these types."""

    model: ServedModel
    cluster: ClusterSpec
    matmul_share: dict[str, float]
    group: int  # GPUs that share the copy
    weights: str
    cache: str
    has_own_attention: bool = False  # each GPU runs the attention of other requests
    largest_step: LargestStep = _USUAL_STEP
    most_held: int = MOST_REQUESTS  # requests at a time

    @property
    def compute_type(self) -> str:
        """Return the type of the matrix multiplications. Raise InputError if the GPU does not have it."""
        wanted = weight_type(self.weights).computes_in
        peaks = self.cluster.peak_flops_per_s
        if wanted in peaks:
            return wanted
        if wanted == "bf16" and "fp16" in peaks and self.weights != "bf16":
            return "fp16"
        raise InputError(
            f"{self.cluster.gpu} cannot multiply in {wanted}, which weights of type {self.weights} need",
            hint=f"its types: {', '.join(peaks)}; int8 and int4 weights are computed in 16 bits",
        )

    def rate(self, compute_type: str) -> float:
        """Return the operations per second of the best matrix multiplication of one GPU in a type."""
        share = {**ASSUMED_SHARE, **self.matmul_share}
        return self.cluster.peak_flops_per_s[compute_type] * share[compute_type]

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of the weights on one GPU."""
        model = self.model
        narrow = self.bytes_of(model.dense_weights + model.expert_weights)
        return (narrow + model.wide_parameters * wide_bytes(self.weights)) / self.group

    @property
    def wide_weights(self) -> int:
        """Return the weights in matrices of layers that stay in 16 bits: those of attention, with some types."""
        return self.model.attention_weights if weight_type(self.weights).is_of_feed_forward else 0

    def bytes_of(self, weights: float) -> float:
        """Return the bytes of this many weights in matrices of layers, those of attention among them."""
        wide = self.wide_weights
        return (weights - wide) * weight_type(self.weights).bytes_per_weight + wide * wide_bytes(self.weights)

    def cache_bytes(self, tokens: float) -> float:
        """Return the bytes that a request of `tokens` keeps on one GPU.

        If each GPU has its own attention, it is the mean over the GPUs.
        """
        split = 1 if self.has_own_attention else self.group
        on_one = self.model.cached_elements(tokens, split) * cache_bytes(self.cache)
        return on_one / self.group if self.has_own_attention else on_one

    @property
    def usable_bytes(self) -> float:
        """Return what an engine uses of one GPU's memory for weights and caches."""
        return self.cluster.memory_bytes * UTILISATION - CONTEXT_BYTES - self.activation_bytes

    @property
    def activation_bytes(self) -> float:
        """Return what an engine keeps of one GPU's memory for the activations of its largest step."""
        return activation_bytes(self.model, self.group, wide_bytes(self.weights), self.largest_step)

    def most_concurrent(self, tokens: float) -> int:
        """Return the requests of this length whose caches fit in addition to the weights."""
        free = self.usable_bytes - self.weight_bytes
        return max(int(free / self.cache_bytes(tokens)), 0)


def step_s(served: Served, constants: StepConstants, requests: float, context: float) -> float:
    """Return the time of a step that makes a token for `requests` requests of `context` tokens each."""
    read_s, computed_s = _weights_read_s(served, constants, requests), _products_s(served, constants, requests)
    caches_s = requests * served.cache_bytes(context) / (served.cluster.memory_bytes_per_s * constants.memory)
    work_s = max(read_s, computed_s) + caches_s
    return work_s + _fixed_s(served, constants, requests) + _reductions_s(served, constants, requests)


def prompt_s(served: Served, constants: StepConstants, tokens: int) -> float:
    """Return the time that a prompt of `tokens` takes from the group."""
    products_s = _products_s(served, constants, float(tokens), with_head=False)
    wide = "fp32" if served.weights == "fp32" else ("bf16" if "bf16" in served.cluster.peak_flops_per_s else "fp16")
    attention = served.model.prefill_operations(tokens) / served.group
    attention_s = attention / (served.rate(wide) * constants.matmul)
    bytes_s = _reduced_bytes_s(served, constants, float(tokens))
    return products_s + attention_s + bytes_s


def _fixed_s(served: Served, constants: StepConstants, requests: float) -> float:
    """Return the time of a step that depends on no rate: the host's, and what each layer costs without its work."""
    of_layers_s = served.model.num_layers * constants.layer_s
    of_experts_s = served.model.num_expert_layers * constants.expert_layer_s
    return constants.step_s + of_layers_s + of_experts_s + requests * constants.request_s


def _weights_read_s(served: Served, constants: StepConstants, requests: float) -> float:
    """Return the time to read the weights that a step of `requests` uses: of experts, those that one chose."""
    model = served.model
    touched = 1.0 - float((1.0 - model.expert_share) ** requests)
    narrow = served.bytes_of(model.dense_weights + model.expert_weights * touched)
    head = model.head_weights * wide_bytes(served.weights)
    return (narrow + head) / served.group / (served.cluster.memory_bytes_per_s * constants.memory)


def _products_s(served: Served, constants: StepConstants, tokens: float, *, with_head: bool = True) -> float:
    model, wide = served.model, served.wide_weights
    of_experts = model.expert_weights * model.expert_share
    weights = model.dense_weights + of_experts / constants.experts + (model.head_weights if with_head else 0)
    products_s = (weights - wide) / _product_rate(served, constants, served.compute_type)
    if wide:
        products_s += wide / _product_rate(served, constants, "bf16")
    return 2.0 * products_s * tokens / served.group


def _product_rate(served: Served, constants: StepConstants, compute_type: str) -> float:
    """Return the operations per second of a GPU's matrix multiplications in a type."""
    rate = served.rate(compute_type) * constants.matmul
    return rate * constants.low if compute_type in _LOW else rate


def _reductions_s(served: Served, constants: StepConstants, tokens: float) -> float:
    if served.group == 1:
        return 0.0
    fixed_s = 2 * served.model.num_layers * constants.reduction_s
    return fixed_s + _reduced_bytes_s(served, constants, tokens)


def _reduced_bytes_s(served: Served, constants: StepConstants, tokens: float) -> float:
    """Return the time that the bytes of two reductions a layer take on the links."""
    others = (served.group - 1) / served.group
    reduced = 2 * served.model.num_layers * tokens * served.model.hidden * wide_bytes(served.weights)
    return 2 * others * reduced / (served.cluster.link_bytes_per_s * constants.link)
