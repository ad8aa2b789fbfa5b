"""How many layers and parameters the fullest rank of a layout has."""

from __future__ import annotations

import numpy as np

from flatout.plan.case import Case, Column


def layers_of_fullest_stage(case: Case) -> Column:
    """Chunks hold whole layers: those that do not divide leave some stage one more in a chunk."""
    return np.ceil(case.layers / (case.pp * case.vpp)) * case.vpp


def layers_of_last_stage(case: Case) -> Column:
    """What the others leave, or an even share: frameworks take layers from the last stage, which has the logits."""
    return np.maximum(case.layers - (case.pp - 1.0) * layers_of_fullest_stage(case), 0.0)


def layer_parameters(case: Case) -> Column:
    """Of one layer without its routed experts (the mean over layers), on one tensor-parallel rank."""
    num_dense = case.layers - case.moe_layers
    ffn = (num_dense * case.ffn + case.moe_layers * case.shared_ffn) * case.ffn_matrices / case.layers
    router = case.moe_layers / case.layers * case.experts
    return case.hidden * ((case.qkv_width + case.out_width + ffn) / case.tp + router + 2.0)


def dense_parameters(case: Case) -> Column:
    """Of the fullest rank, without routed experts: its layers, and the embedding or the logits."""
    table = case.vocab * case.hidden / case.tp
    tables = np.where(case.pp > 1, table, table * (2.0 - case.tied))
    return layers_of_fullest_stage(case) * layer_parameters(case) + tables


def expert_parameters(case: Case) -> Column:
    """Routed experts of the fullest rank; each expert is whole on one of `ep` ranks."""
    each = case.ffn_matrices * case.hidden * case.expert_ffn
    share_moe = case.moe_layers / case.layers
    return layers_of_fullest_stage(case) * share_moe * each * case.experts / case.ep


def expert_replicas(case: Case) -> Column:
    """Ranks of a stage that have the same experts."""
    return np.maximum(case.tp * case.cp * case.dp / case.ep, 1.0)


def shards(case: Case) -> tuple[Column, Column]:
    """Into how many pieces ZeRO cuts what replicas share: of what is dense, and of the experts."""
    replicas, of_experts = case.dp * case.cp, expert_replicas(case)
    if not np.any(case.shard):
        return replicas, of_experts
    all_of_them = case.shard == 0
    dense = np.where(all_of_them, replicas, np.minimum(case.shard, replicas))
    return dense, np.where(all_of_them, of_experts, np.minimum(case.shard, of_experts))
