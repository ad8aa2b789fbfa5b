"""Read decoders with special attention or networks: latent attention, chunks, old GPT variants."""

from __future__ import annotations

import msgspec

from flatout.errors import InputError
from flatout.plan.models import recurrences
from flatout.plan.models.config import ModelConfig
from flatout.plan.models.decoders import assembled, assembled_alike, check_length, num_layers, read_heads
from flatout.plan.models.experts import ExpertTraits, expert_network, feed_forward_of_layers
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
from flatout.plan.models.traits import Traits
from flatout.records.plan import Workload

_GATED = Traits()


def read_latent(config: ModelConfig) -> Workload:
    """Return a model with latent attention: DeepSeek V2 and V3, Kimi K2, GLM-4.7-Flash."""
    hidden, layers = config.size("hidden_size"), num_layers(config)
    mixing, heads = _latent(config, hidden)
    workload = assembled(
        config,
        heads,
        [mixing] * layers,
        feed_forward_of_layers(config, _GATED),
        norms_per_layer=2 * hidden,
        outside_parameters=hidden,
    )
    return msgspec.structs.replace(
        workload,
        q_rank=config.whole("q_lora_rank", default=0),
        kv_rank=config.size("kv_lora_rank"),
        rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )


def _latent(config: ModelConfig, hidden: int) -> tuple[Mixing, Heads]:
    num_heads = config.size("num_attention_heads")
    widths = LatentWidths(
        query_rank=config.whole("q_lora_rank", default=0),
        kv_rank=config.size("kv_lora_rank"),
        nope_dim=config.size("qk_nope_head_dim"),
        rope_dim=config.size("qk_rope_head_dim"),
        value_dim=config.size("v_head_dim"),
    )
    mixing = latent_attention(hidden, num_heads, widths, has_bias=config.is_on("attention_bias"))
    return mixing, Heads(hidden, num_heads, num_heads, widths.nope_dim)


def read_kimi_linear(config: ModelConfig) -> Workload:
    """Return Kimi Linear: delta attention, latent attention in some layers, experts after the first."""
    hidden, layers = config.size("hidden_size"), num_layers(config)
    mixing, heads = _latent(config, hidden)
    of_hub = config.part("linear_attn_config", "kimi_linear")  # where configs on the Hub have these numbers
    recurrent = recurrences.kimi_delta(
        hidden,
        num_heads=of_hub.values.get("num_heads") or config.size("linear_num_heads"),
        dim=of_hub.values.get("head_dim") or config.size("linear_head_dim"),
        kernel=of_hub.values.get("short_conv_kernel_size") or config.size("linear_conv_kernel_dim"),
    )
    full = of_hub.values.get("full_attn_layers")  # counted from 1
    attends = [layer + 1 in full if full else layer > 0 and layer % 4 == 0 for layer in range(layers)]
    types = config.texts("layer_types") or [
        "full_attention" if is_attention else "linear_attention" for is_attention in attends
    ]
    num_dense = config.whole("first_k_dense_replace", default=1)
    network_types = config.texts("mlp_layer_types") or [
        "dense" if layer < num_dense else "sparse" for layer in range(layers)
    ]
    check_length(config, "layer_types", types, layers)
    check_length(config, "mlp_layer_types", network_types, layers)
    dense = FeedForward(feed_forward(hidden, config.size("intermediate_size"), is_gated=True))
    routed = expert_network(
        config,
        ExpertTraits(used=("num_experts_per_tok", "num_experts_per_token"), num_shared="n_shared_experts"),
    )
    workload = assembled(
        config,
        heads,
        [mixing if kind == "full_attention" else recurrent for kind in types],
        [routed if kind == "sparse" else dense for kind in network_types],
        norms_per_layer=2 * hidden,
        outside_parameters=hidden,
    )
    # transformers ties no tables of it, whatever the config says
    return msgspec.structs.replace(workload, is_tied=False)


def read_llama4(config: ModelConfig) -> Workload:
    """Return Llama 4's text model: attention in chunks but for each fourth layer, experts next to a shared one."""
    heads, layers = read_heads(config), num_layers(config)
    hidden = heads.hidden
    chunk = config.whole("attention_chunk_size", default=0)
    every = config.whole("no_rope_layer_interval", default=4)
    rotary = config.value("no_rope_layers") or [int((layer + 1) % every != 0) for layer in range(layers)]
    types = config.texts("layer_types") or ["chunked_attention" if has else "full_attention" for has in rotary]
    check_length(config, "layer_types", types, layers)
    bias = config.is_on("attention_bias")
    full = attention(heads, qkv_bias=bias, out_bias=bias)
    chunked = full._replace(kind="chunk", window=chunk) if chunk else full
    width = config.size("intermediate_size")
    routed = experts(
        hidden,
        width,
        config.size("num_local_experts"),
        config.size("num_experts_per_tok"),
        shared_width=width,
    )
    dense = FeedForward(feed_forward(hidden, config.size("intermediate_size_mlp"), is_gated=True))
    listed, step = config.value("moe_layers"), config.size("interleave_moe_layer_step")
    has_experts = [(layer in listed) if listed is not None else (layer + 1) % step == 0 for layer in range(layers)]
    return assembled(
        config,
        heads,
        [chunked if kind == "chunked_attention" else full for kind in types],
        [routed if is_sparse else dense for is_sparse in has_experts],
        norms_per_layer=2 * hidden,
        outside_parameters=hidden,
    )


def read_dbrx(config: ModelConfig) -> Workload:
    """Return DBRX, whose config has the numbers of attention and of experts in two configs inside it."""
    hidden, num = config.size("d_model"), config.size("n_heads")
    of_attention, of_experts = config.part("attn_config", "dbrx"), config.part("ffn_config", "dbrx")
    heads = Heads(hidden, num, of_attention.whole("kv_n_heads", default=1), hidden // num)
    network = experts(
        hidden,
        of_experts.whole("ffn_hidden_size", default=3584),
        of_experts.whole("moe_num_experts", default=4),
        of_experts.whole("moe_top_k", default=1),
    )
    return assembled_alike(
        config,
        heads,
        attention(heads),
        network,
        norms_per_layer=2 * hidden,
        outside_parameters=hidden,
    )


def read_opt(config: ModelConfig) -> Workload:
    """Return OPT: two more positions than it has, and projections where the embedding is narrower than the layers."""
    heads = read_heads(config)
    hidden = heads.hidden
    bias = config.is_on("enable_bias")
    norm = 2 * hidden if config.is_on("layer_norm_elementwise_affine") else 0
    network = FeedForward(feed_forward(hidden, config.size("ffn_dim"), is_gated=False, has_bias=bias))
    embedding = config.whole("word_embed_proj_dim", default=0) or hidden
    has_final_norm = config.is_on("do_layer_norm_before") and not config.is_on("_remove_final_layer_norm")
    outside = (config.size("max_position_embeddings") + 2) * hidden
    outside += norm if has_final_norm else 0
    outside += 2 * hidden * embedding if embedding != hidden else 0
    return assembled_alike(
        config,
        heads,
        attention(heads, qkv_bias=bias, out_bias=bias),
        network,
        norms_per_layer=2 * norm,
        is_gated=False,
        outside_parameters=outside,
        table_width=embedding,
    )


def read_mpt(config: ModelConfig) -> Workload:
    """Return MPT. Raise InputError for its variants of attention, which transformers does not have."""
    kind = config.part("attn_config", "mpt").value("attn_type")
    if kind not in (None, "multihead_attention"):
        raise InputError(f"the attention of an MPT must be multihead_attention, but `{config.path}` has `{kind}`")
    hidden, num = config.size("d_model"), config.size("n_heads")
    heads = Heads(hidden, num, num, hidden // num)
    network = FeedForward(feed_forward(hidden, 4 * hidden, is_gated=False))
    return assembled_alike(
        config,
        heads,
        attention(heads),
        network,
        norms_per_layer=2 * hidden,
        is_gated=False,
        outside_parameters=hidden,
    )


def read_gpt_neo(config: ModelConfig) -> Workload:
    """Return GPT-Neo, whose layers attend to all tokens or to a window in turn."""
    heads, layers = read_heads(config), num_layers(config)
    hidden = heads.hidden
    types = config.texts("attention_layers")
    if types is None:
        pattern = config.value("attention_types") or [[["global", "local"], layers // 2]]
        types = [kind for kinds, times in pattern for _ in range(min(times, layers)) for kind in kinds]
    check_length(config, "attention_types", types, layers)
    full = attention(heads, out_bias=True)
    local = full._replace(kind="window", window=config.size("window_size"))
    width = config.whole("intermediate_size", default=0) or 4 * hidden
    network = FeedForward(feed_forward(hidden, width, is_gated=False, has_bias=True))
    return assembled(
        config,
        heads,
        [local if kind == "local" else full for kind in types],
        [network] * layers,
        norms_per_layer=4 * hidden,
        is_gated=False,
        outside_parameters=config.size("max_position_embeddings") * hidden + 2 * hidden,
    )


def read_grok(config: ModelConfig) -> Workload:
    """Return Grok-1: experts in every layer, four norms, tied tables."""
    heads = read_heads(config)
    network = experts(
        heads.hidden,
        config.size("intermediate_size"),
        config.size("num_experts"),
        config.size("num_experts_per_tok"),
    )
    return assembled_alike(
        config,
        heads,
        attention(heads),
        network,
        norms_per_layer=4 * heads.hidden,
        outside_parameters=heads.hidden,
    )


def read_arctic(config: ModelConfig) -> Workload:
    """Return Snowflake Arctic: a dense network next to the experts of a layer."""
    heads, layers = read_heads(config), num_layers(config)
    hidden, width = heads.hidden, config.size("intermediate_size")
    every = config.whole("moe_layer_frequency", default=2)
    is_parallel = config.is_on("parallel_attn_mlp_res") or config.is_on("use_residual")
    num, used = config.size("num_local_experts"), config.size("num_experts_per_tok")
    routed = experts(hidden, width, num, used, shared_width=hidden if is_parallel else 0)
    dense = FeedForward(feed_forward(hidden, width, is_gated=True))
    has_experts = [(layer + 1) % every == 0 for layer in range(layers)]
    return assembled(
        config,
        heads,
        [attention(heads)] * layers,
        [routed if is_sparse else dense for is_sparse in has_experts],
        norms_per_layer=lambda layer: hidden * (3 if has_experts[layer] and is_parallel else 2),
        outside_parameters=hidden,
    )
