"""Count the layers and parameters of the largest rank, by layout."""

from __future__ import annotations

import numpy as np

from flatout.plan.inputs import Column, CostModelInputs


def moe_share(inputs: CostModelInputs) -> Column:
    """Return the share of the layers that have experts."""
    return inputs.moe_layers / inputs.layers


def layers_of_largest_stage(inputs: CostModelInputs) -> Column:
    """Return the layers of the stage that has the most.

    Chunks hold complete layers: if the layers do not divide evenly, some stage has one more layer per chunk. Of two
    stages, the first one has the most, without what its first chunk lacks.
    """
    most = np.ceil(inputs.layers / (inputs.pp * inputs.vpp)) * inputs.vpp
    return np.where(inputs.pp == 2, most - _missing_in_first_chunk(inputs), most)


def layers_of_last_stage(inputs: CostModelInputs) -> Column:
    """Return the layers that the other stages leave to the last one, or an even share.

    Frameworks take layers from the last stage, because it has the logits.
    """
    of_others = (inputs.pp - 1.0) * layers_of_largest_stage(inputs)
    of_others = of_others - np.where(inputs.pp > 2, _missing_in_first_chunk(inputs), 0.0)
    return np.maximum(inputs.layers - of_others, 0.0)


def _missing_in_first_chunk(inputs: CostModelInputs) -> Column:
    """Return how many layers fewer than others the first chunk has, because the last one has none left to lack."""
    chunks = inputs.pp * inputs.vpp
    most = np.ceil(inputs.layers / chunks)
    return np.where(inputs.vpp > 1, np.maximum(most * chunks - inputs.layers - most, 0.0), 0.0)


def layer_parameters(inputs: CostModelInputs) -> Column:
    """Return the parameters of one layer on one tensor-parallel rank: the mean over layers, without routed experts."""
    num_dense = inputs.layers - inputs.moe_layers
    ffn_width = num_dense * inputs.ffn + inputs.moe_layers * inputs.shared_ffn
    ffn = ffn_width * inputs.ffn_matrices / inputs.layers
    router = moe_share(inputs) * inputs.experts
    split = (inputs.qkv_width + inputs.out_width + ffn) / inputs.tp
    return inputs.hidden * (split + router) + inputs.other_parameters


def dense_parameters(inputs: CostModelInputs) -> Column:
    """Return the rank's parameters without routed experts: its layers, its table of the vocabulary, and towers."""
    in_layers = layers_of_largest_stage(inputs) * layer_parameters(inputs) * inputs.stage_parameters
    return in_layers + table_parameters(inputs) + inputs.outside_parameters * inputs.is_first_stage


def table_parameters(inputs: CostModelInputs) -> Column:
    """Return the parameters of the rank's embedding or logits: both if there is one stage, none on a middle one."""
    table = inputs.vocab * inputs.hidden / inputs.tp
    on_an_end = table * np.maximum(inputs.is_first_stage, inputs.is_last_stage)
    return np.where(inputs.pp > 1, on_an_end, table * (2.0 - inputs.tied))


def expert_parameters(inputs: CostModelInputs) -> Column:
    """Return the rank's parameters of routed experts, which `ep` groups of `etp` ranks hold."""
    per_expert = inputs.ffn_matrices * inputs.hidden * inputs.expert_ffn
    moe_layers = layers_of_largest_stage(inputs) * moe_share(inputs) * inputs.stage_experts
    return moe_layers * per_expert * inputs.experts / (inputs.ep * inputs.etp)


def expert_replicas(inputs: CostModelInputs) -> Column:
    """Return the number of ranks of a stage that have the same experts."""
    return np.maximum(inputs.tp * inputs.cp * inputs.dp / (inputs.ep * inputs.etp), 1.0)


def shards(inputs: CostModelInputs) -> tuple[Column, Column]:
    """Return the number of ZeRO shards of the dense parameters, and of the experts."""
    replicas, of_experts = inputs.dp * inputs.cp, expert_replicas(inputs)
    if not np.any(inputs.shard):
        return replicas, of_experts
    is_over_all = inputs.shard == 0
    dense = np.where(is_over_all, replicas, np.minimum(inputs.shard, replicas))
    return dense, np.where(is_over_all, of_experts, np.minimum(inputs.shard, of_experts))
