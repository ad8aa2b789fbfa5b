"""The layers of a workload that is given by its widths: alike but for dense layers and layers with experts."""

from __future__ import annotations

from flatout.plan.models.parts import (
    FeedForward,
    Heads,
    LatentWidths,
    Mixing,
    attention,
    experts,
    feed_forward,
    latent_attention,
)
from flatout.records.layers import LayerKind
from flatout.records.plan import Workload


def layer_kinds(workload: Workload) -> tuple[LayerKind, ...]:
    """Return the layers by kind: those that were read from a config, or those that the widths describe."""
    return workload.layers or _uniform(workload)


def _uniform(workload: Workload) -> tuple[LayerKind, ...]:
    w = workload
    mixing = _mixing(w)
    dense = FeedForward(feed_forward(w.hidden, w.ffn, is_gated=w.is_gated, has_bias=w.has_bias))
    num_dense = w.num_layers - w.num_moe_layers
    kinds = [_kind(w, mixing, dense, num_dense)] if num_dense else []
    if w.num_moe_layers:
        with_experts = experts(
            w.hidden,
            w.expert_ffn,
            w.num_experts,
            w.experts_per_token,
            shared_width=w.shared_ffn,
            is_gated=w.is_gated,
        )
        kinds.append(_kind(w, mixing, with_experts, w.num_moe_layers))
    return tuple(kinds)


def _mixing(workload: Workload) -> Mixing:
    w = workload
    if w.kv_rank:
        widths = LatentWidths(w.q_rank, w.kv_rank, w.head_dim, w.rope_dim, w.value_dim or w.head_dim)
        return latent_attention(w.hidden, w.num_heads, widths)
    return attention(
        Heads(w.hidden, w.num_heads, w.num_kv_heads, w.head_dim),
        qkv_bias=w.has_bias or w.has_qkv_bias,
        out_bias=w.has_bias,
        other_parameters=2 * w.head_dim if w.has_qk_norm else 0,
    )


def _kind(workload: Workload, mixing: Mixing, network: FeedForward, num_layers: int) -> LayerKind:
    two_norms = 2 * workload.hidden * (2 if workload.has_bias else 1)
    return LayerKind(
        mixing=mixing.kind,
        num_layers=num_layers,
        matrices=(*mixing.matrices, *network.matrices),
        other_parameters=mixing.other_parameters + two_norms,
        score_width=mixing.score_width,
        kv_width=mixing.kv_width,
    )
