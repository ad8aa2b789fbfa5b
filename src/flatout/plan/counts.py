"""Count a workload's parameters and floating-point operations, term by term.

Parameters follow the published model definitions exactly (tests compare them with the published numbers). Operations:
2 for each multiply-add of a matrix multiplication, forward; a training step has three times as many (the gradients of
inputs and of weights), without recomputation. Same terms as Megatron-LM's `num_floating_point_operations`.
"""

from __future__ import annotations

from flatout.records.plan import Workload


def query_key_dim(workload: Workload) -> int:
    """Return the elements of one head's query; with latent attention, with and without rotary positions."""
    return workload.head_dim + workload.rope_dim


def value_dim(workload: Workload) -> int:
    """Return the elements of one head's value."""
    return workload.value_dim or workload.head_dim


def qkv_parameters(workload: Workload) -> int:
    """Return the weights of the projections into queries, keys and values.

    Latent attention: DeepSeek-V2, arXiv 2405.04434, 2.1.
    """
    w = workload
    if not w.kv_rank:
        return w.hidden * (w.num_heads + 2 * w.num_kv_heads) * w.head_dim
    queries = w.num_heads * query_key_dim(w)
    into_queries = w.hidden * queries
    if w.q_rank:
        into_queries = w.hidden * w.q_rank + w.q_rank * queries
    into_latent = w.hidden * (w.kv_rank + w.rope_dim)
    from_latent = w.kv_rank * w.num_heads * (w.head_dim + value_dim(w))
    return into_queries + into_latent + from_latent


def out_width(workload: Workload) -> int:
    """Return the number of elements in all heads' values, which are the input of the output projection."""
    return workload.num_heads * value_dim(workload)


def matrices_per_ffn(workload: Workload) -> int:
    """Return the number of matrices in one feed-forward network: up and down, and a gate if it has one."""
    return 3 if workload.is_gated else 2


def attention_parameters(workload: Workload) -> int:
    """Return the parameters of one layer's attention, with its biases and inner norms."""
    w = workload
    biases = 0
    if w.has_bias or w.has_qkv_bias:
        biases += (w.num_heads + 2 * w.num_kv_heads) * w.head_dim
    if w.has_bias:
        biases += w.hidden
    norms = 2 * w.head_dim if w.has_qk_norm else 0
    if w.kv_rank:
        norms += w.q_rank + w.kv_rank
    return qkv_parameters(w) + w.hidden * out_width(w) + biases + norms


def dense_ffn_parameters(workload: Workload) -> int:
    """Return the parameters of one dense layer's feed-forward network."""
    w = workload
    biases = w.ffn + w.hidden if w.has_bias else 0
    return matrices_per_ffn(w) * w.hidden * w.ffn + biases


def expert_parameters(workload: Workload) -> int:
    """Return the parameters of all routed experts of one layer, without the router."""
    w = workload
    return w.num_experts * matrices_per_ffn(w) * w.hidden * w.expert_ffn


def shared_parameters(workload: Workload) -> int:
    """Return the parameters of a layer of experts that every token uses: the router and the shared experts."""
    w = workload
    return w.hidden * w.num_experts + matrices_per_ffn(w) * w.hidden * w.shared_ffn


def norm_parameters(workload: Workload) -> int:
    """Return the parameters of one norm."""
    return workload.hidden * (2 if workload.has_bias else 1)


def embedding_parameters(workload: Workload) -> int:
    """Return the parameters before the first layer: tokens or patches, positions and segments."""
    w = workload
    parameters = (w.vocab + w.max_positions) * w.hidden
    if w.patch_inputs:  # with its bias and the class token
        parameters += (w.patch_inputs + 2) * w.hidden
    if w.num_token_types:
        parameters += w.num_token_types * w.hidden + norm_parameters(w)
    return parameters


def head_parameters(workload: Workload) -> int:
    """Return the parameters after the last layer: its norm and the untied logits, or a ViT's classes.

    BERT has neither.
    """
    w = workload
    final_norm = 0 if w.num_token_types else norm_parameters(w)
    if w.num_classes:
        return final_norm + w.hidden * w.num_classes + w.num_classes
    return final_norm + (0 if w.is_tied else w.vocab * w.hidden)


def num_parameters(workload: Workload) -> int:
    """Return the number of all parameters."""
    w = workload
    num_dense = w.num_layers - w.num_moe_layers
    return (
        w.num_layers * (attention_parameters(w) + 2 * norm_parameters(w))
        + num_dense * dense_ffn_parameters(w)
        + w.num_moe_layers * (expert_parameters(w) + shared_parameters(w))
        + embedding_parameters(w)
        + head_parameters(w)
    )


def num_active_parameters(workload: Workload) -> int:
    """Return the number of parameters that one token uses, with `experts_per_token` of the routed experts."""
    w = workload
    if not w.num_experts:
        return num_parameters(w)
    idle = expert_parameters(w) * (w.num_experts - w.experts_per_token) // w.num_experts
    return num_parameters(w) - w.num_moe_layers * idle


def training_flops_per_token(workload: Workload, seq: int, *, is_causal: bool | None = None) -> float:
    """Return the operations of forward and backward for one token in a sequence of `seq`, without recomputation.

    `is_causal=False` counts the masked half of attention too, as Narayanan et al. (arXiv 2104.04473, eq. 3) do.
    """
    w = workload
    if is_causal is None:
        is_causal = w.is_causal
    unmasked = 0.5 if is_causal else 1.0
    scores = seq * w.num_heads * (query_key_dim(w) + value_dim(w)) * unmasked
    num_dense = w.num_layers - w.num_moe_layers
    ffn = num_dense * w.ffn + w.num_moe_layers * (w.experts_per_token * w.expert_ffn + w.shared_ffn)
    multiply_adds = (
        w.num_layers * (qkv_parameters(w) + w.hidden * out_width(w) + scores)
        + matrices_per_ffn(w) * w.hidden * ffn
        + w.num_moe_layers * w.hidden * w.num_experts
        + w.hidden * w.vocab
    )
    return 6.0 * multiply_adds
