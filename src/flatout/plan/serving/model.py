"""What serving needs to know of a model: the weights that a step reads, and the cache that a token leaves.

In: a `Workload`. Out: a `ServedModel`. Models whose cache is unknown are refused: encoders, and recurrences, whose
state no reader of configs counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from flatout.errors import InputError
from flatout.plan import counts
from flatout.plan.models.uniform import layer_kinds
from flatout.records.layers import LayerKind
from flatout.records.plan import Workload

LATENT = "kv_a_proj_with_mqa"  # the matrix whose outputs latent attention keeps, instead of keys and values


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedLayers:
    """Layers that keep the same of a token."""

    num_layers: int
    elements: int  # that one token leaves in one layer
    window: int  # tokens that are kept at most; 0: all
    most_splits: int  # GPUs of a tensor-parallel group that can share them; beyond, copies are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The numbers of one model that its memory and its steps depend on."""

    name: str
    num_parameters: int
    num_layers: int
    num_expert_layers: int
    num_heads: int
    hidden: int
    vocab: int
    dense_weights: int  # in matrices of layers that every token uses
    attention_weights: int  # of those, in the projections before and after attention
    expert_weights: int  # in matrices of routed experts, all of them
    expert_share: float  # of those, what one token uses
    head_weights: int  # of the product that makes the logits
    wide_parameters: int  # of what stays in 16 bits: tables of the vocabulary, norms, towers
    cached: tuple[CachedLayers, ...]
    kinds: tuple[LayerKind, ...]

    @property
    def active_weights(self) -> float:
        """Return the number of weights by which one token is multiplied."""
        return self.dense_weights + self.expert_weights * self.expert_share

    def cached_elements(self, tokens: float, group: int) -> float:
        """Return the elements that one request of `tokens` keeps on one of the `group` GPUs that share the model."""
        total = 0.0
        for layers in self.cached:
            kept = min(tokens, layers.window) if layers.window else tokens
            total += layers.num_layers * layers.elements * kept / min(group, layers.most_splits)
        return total

    def prefill_operations(self, tokens: int) -> float:
        """Return the operations of attention alone for a prompt of `tokens`, in all layers."""
        multiply_adds = 0.0
        for kind in self.kinds:
            multiply_adds += kind.num_layers * counts.score_multiply_adds(kind, tokens, is_causal=True)
        return 2.0 * tokens * multiply_adds


def served_model(workload: Workload) -> ServedModel:
    """Return the model as an engine serves it. Raise InputError if it generates no text or its cache is unknown."""
    kinds = layer_kinds(workload)
    _check(workload, kinds)
    dense = experts = attention = 0
    used_experts = 0.0
    for kind in kinds:
        for matrix in kind.matrices:
            weights = kind.num_stored * matrix.copies * matrix.weights
            if matrix.part == "experts":
                experts += weights
                used_experts += weights * matrix.used / matrix.copies
            else:
                dense += weights
            if matrix.part in ("in", "out"):
                attention += weights
    num_parameters = counts.num_parameters(workload)
    return ServedModel(
        name=workload.name,
        num_parameters=num_parameters,
        num_layers=workload.num_layers,
        num_expert_layers=_num_expert_layers(kinds),
        num_heads=workload.num_heads,
        hidden=workload.hidden,
        vocab=workload.vocab,
        dense_weights=dense,
        attention_weights=attention,
        expert_weights=experts,
        expert_share=used_experts / experts if experts else 0.0,
        head_weights=workload.vocab * (workload.table_width or workload.hidden),
        wide_parameters=num_parameters - dense - experts,
        cached=tuple(_cached(workload, kind) for kind in kinds if kind.mixing != "none"),
        kinds=kinds,
    )


def _num_expert_layers(kinds: tuple[LayerKind, ...]) -> int:
    has_experts = {kind: any(matrix.part == "experts" for matrix in kind.matrices) for kind in kinds}
    return sum(kind.num_layers for kind in kinds if has_experts[kind])


def _check(workload: Workload, kinds: tuple[LayerKind, ...]) -> None:
    mixings = {kind.mixing for kind in kinds}
    if "recurrence" in mixings:
        raise InputError(
            f"`{workload.name}` has recurrent layers, whose state during generation is unknown, so its memory cannot "
            "be planned",
            hint="plan a model of attention only, or measure: flatout tune --serve 'CMD' --load load.toml --slo LIMITS",
        )
    is_encoder = not workload.is_causal or all(kind.is_bidirectional for kind in kinds)
    if is_encoder or not workload.vocab:
        raise InputError(
            f"`{workload.name}` generates no text: a plan for serving needs a causal language model",
            hint="measure its latency instead: flatout profile -- python infer.py",
        )
    if any(kind.is_bidirectional or kind.cross_width for kind in kinds):
        raise InputError(
            f"`{workload.name}` attends to an encoder, whose part of the cache is unknown, so it cannot be planned",
            hint="plan its decoder by its widths: --model layers=N,hidden=N,heads=N,kv_heads=N,ffn=N,vocab=N",
        )


def _cached(workload: Workload, kind: LayerKind) -> CachedLayers:
    """Return what a layer keeps: keys and values, or with latent attention the vector that both are made of."""
    latent = [matrix.outputs for matrix in kind.matrices if matrix.name == LATENT]
    if latent:
        return CachedLayers(num_layers=kind.num_layers, elements=latent[0], window=kind.window, most_splits=1)
    keys = sum(matrix.outputs for matrix in kind.matrices if matrix.name == "k_proj")
    num_kv_heads = workload.num_kv_heads
    if keys and workload.head_dim and keys % workload.head_dim == 0:
        num_kv_heads = keys // workload.head_dim
    return CachedLayers(
        num_layers=kind.num_layers, elements=kind.kv_width, window=kind.window, most_splits=max(num_kv_heads, 1)
    )
