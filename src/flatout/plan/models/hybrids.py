"""Read models with recurrent layers: alone, or in turn with attention."""

from __future__ import annotations

import math

from flatout.plan.models import recurrences
from flatout.plan.models.config import ModelConfig
from flatout.plan.models.decoders import assembled, assembled_alike, check_length, num_layers, read_heads
from flatout.plan.models.experts import EXPERTS, ExpertTraits, expert_network, feed_forward_of_layers
from flatout.plan.models.parts import (
    NO_FEED_FORWARD,
    FeedForward,
    Heads,
    Mixing,
    attention,
    feed_forward,
    matrix,
)
from flatout.plan.models.traits import Traits
from flatout.records.plan import Workload

_RECURRENT = ("mamba", "mamba2", "linear_attention", "recurrent", "conv")
_GATED = Traits()


def read_mamba(config: ModelConfig) -> Workload:
    """Return a model of Mamba layers alone."""
    hidden = config.size("hidden_size")
    inner = config.whole("intermediate_size", default=0) or config.whole("expand") * hidden
    mixing = recurrences.mamba(
        hidden,
        inner,
        config.size("state_size"),
        kernel=config.size("conv_kernel"),
        step_rank=_step_rank(config, "time_step_rank", hidden),
        conv_bias=config.is_on("use_conv_bias"),
        bias=config.is_on("use_bias"),
    )
    return _recurrent_only(config, mixing, num_heads=1)


def read_mamba2(config: ModelConfig) -> Workload:
    """Return a model of Mamba-2 layers alone."""
    hidden = config.size("hidden_size")
    num_heads = config.size("num_heads")
    mixing = recurrences.mamba2(
        hidden,
        config.whole("expand") * hidden,
        config.size("state_size"),
        num_heads=num_heads,
        groups=config.size("n_groups"),
        kernel=config.size("conv_kernel"),
        conv_bias=config.is_on("use_conv_bias"),
        bias=config.is_on("use_bias"),
        out_bias=config.is_on("use_bias"),
    )
    return _recurrent_only(config, mixing, num_heads=num_heads)


def _recurrent_only(config: ModelConfig, mixing: Mixing, *, num_heads: int) -> Workload:
    hidden = config.size("hidden_size")
    return assembled_alike(
        config,
        Heads(hidden, num_heads, num_heads, hidden // num_heads),
        mixing,
        NO_FEED_FORWARD,
        norms_per_layer=hidden,
        outside_parameters=hidden,
    )


def read_jamba(config: ModelConfig) -> Workload:
    """Return Jamba: Mamba layers with norms inside, some layers with attention, some with experts."""
    heads, layers = read_heads(config), num_layers(config)
    hidden, state = heads.hidden, config.size("mamba_d_state")
    step_rank = _step_rank(config, "mamba_dt_rank", hidden)
    recurrent = recurrences.mamba(
        hidden,
        config.size("mamba_expand") * hidden,
        state,
        kernel=config.size("mamba_d_conv"),
        step_rank=step_rank,
        conv_bias=config.is_on("mamba_conv_bias"),
        bias=config.is_on("mamba_proj_bias"),
        other_parameters=step_rank + 2 * state,
    )
    period, offset = config.size("attn_layer_period"), config.whole("attn_layer_offset")
    attends = [layer % period == offset for layer in range(layers)]
    networks = feed_forward_of_layers(config, _GATED)
    return _alternating(config, heads, attends, attention(heads), recurrent, networks)


def read_bamba(config: ModelConfig) -> Workload:
    """Return Bamba: Mamba-2 layers, and the listed layers with attention."""
    heads, layers = read_heads(config), num_layers(config)
    listed = config.value("attn_layer_indices") or []
    attends = [layer in listed for layer in range(layers)]
    networks = feed_forward_of_layers(config, Traits(ffn_bias="mlp_bias"))
    return _alternating(config, heads, attends, _biased_attention(config, heads), _mamba2_of_bamba(config), networks)


def read_granite_hybrid(config: ModelConfig) -> Workload:
    """Return Granite 4: Mamba-2 or attention by layer, each with a shared network, and experts if there are any."""
    heads, layers = read_heads(config), num_layers(config)
    types = config.texts("layer_types", "layers_block_type") or ["mamba"] * layers
    check_length(config, "layer_types", types, layers)
    shared = config.whole("shared_intermediate_size", default=0)
    if config.whole("num_local_experts", default=0):
        network = expert_network(config, EXPERTS[config.model_type])
    else:
        network = FeedForward(feed_forward(heads.hidden, shared, is_gated=True))
    attends = [kind not in _RECURRENT for kind in types]
    recurrent = _mamba2_of_bamba(config)
    return _alternating(config, heads, attends, _biased_attention(config, heads), recurrent, [network] * layers)


def read_falcon_h1(config: ModelConfig) -> Workload:
    """Return Falcon-H1: attention and Mamba-2 side by side in every layer."""
    heads, layers = read_heads(config), num_layers(config)
    inner = config.whole("mamba_d_ssm", default=0) or config.size("mamba_expand") * heads.hidden
    recurrent = _mamba2_of_bamba(
        config, inner=inner, out_bias=config.is_on("projectors_bias"), has_norm=config.is_on("mamba_rms_norm")
    )
    attending = _biased_attention(config, heads)
    both = attending._replace(
        matrices=attending.matrices + recurrent.matrices,
        other_parameters=attending.other_parameters + recurrent.other_parameters,
        recurrence=recurrent.recurrence,
    )
    networks = feed_forward_of_layers(config, Traits(ffn_bias="mlp_bias"))
    return _alternating(config, heads, [True] * layers, both, recurrent, networks)


def read_qwen3_next(config: ModelConfig) -> Workload:
    """Return Qwen3-Next and Qwen3.5: gated delta networks, and gated attention in each n-th layer."""
    heads, layers = read_heads(config), num_layers(config)
    hidden = heads.hidden
    every = config.whole("full_attention_interval", default=4)
    types = config.texts("layer_types") or [
        "linear_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)
    ]
    check_length(config, "layer_types", types, layers)
    attends = [kind not in _RECURRENT for kind in types]
    plain = _biased_attention(config, heads)
    doubled = matrix("in", "q_proj", hidden, 2 * heads.queries, has_bias=config.is_on("attention_bias"))
    gated = plain._replace(matrices=(doubled, *plain.matrices[1:]), other_parameters=2 * heads.dim)
    recurrent = _gated_delta(config, hidden)
    return _alternating(config, heads, attends, gated, recurrent, feed_forward_of_layers(config, _GATED))


def read_olmo_hybrid(config: ModelConfig) -> Workload:
    """Return OLMo hybrid: gated delta networks, and attention with norms over all heads in each fourth layer."""
    heads, layers = read_heads(config), num_layers(config)
    types = config.texts("layer_types") or [
        "full_attention" if layer % 4 == 3 or layer == layers - 1 < 3 else "linear_attention" for layer in range(layers)
    ]
    check_length(config, "layer_types", types, layers)
    bias = config.is_on("attention_bias")
    attending = attention(heads, qkv_bias=bias, out_bias=bias, other_parameters=heads.queries + heads.keys)
    attends = [kind not in _RECURRENT for kind in types]
    networks = feed_forward_of_layers(config, _GATED)
    return _alternating(config, heads, attends, attending, _gated_delta(config, heads.hidden), networks)


def _gated_delta(config: ModelConfig, hidden: int) -> Mixing:
    num_heads = config.size("num_attention_heads")
    num_key_heads = config.whole("linear_num_key_heads", default=0) or num_heads
    key_dim = config.whole("linear_key_head_dim", default=0) or 3 * hidden // (4 * num_key_heads)
    return recurrences.gated_delta(
        hidden,
        num_key_heads=num_key_heads,
        key_dim=key_dim,
        num_value_heads=config.whole("linear_num_value_heads", default=0) or num_heads,
        value_dim=config.whole("linear_value_head_dim", default=0) or 2 * key_dim,
        kernel=config.size("linear_conv_kernel_dim"),
    )


def read_minimax(config: ModelConfig) -> Workload:
    """Return MiniMax-Text-01: lightning attention and softmax attention in turn, with experts."""
    heads, layers = read_heads(config), num_layers(config)
    types = config.texts("layer_types")
    codes = config.value("attn_type_list")
    if types is None and isinstance(codes, list):
        types = ["full_attention" if code else "linear_attention" for code in codes]
    if types is None:
        types = ["full_attention" if (layer + 1) % 2 else "linear_attention" for layer in range(layers)]
    check_length(config, "layer_types", types, layers)
    recurrent = recurrences.lightning_attention(
        heads.hidden, num_heads=heads.num, dim=heads.dim, block=config.size("block_size")
    )
    attends = [kind not in _RECURRENT for kind in types]
    return _alternating(config, heads, attends, attention(heads), recurrent, feed_forward_of_layers(config, _GATED))


def read_recurrent_gemma(config: ModelConfig) -> Workload:
    """Return RecurrentGemma: gated linear recurrences, and attention with a window in each n-th layer."""
    heads, layers = read_heads(config), num_layers(config)
    hidden = heads.hidden
    pattern = config.texts("block_types", "_block_types") or ["recurrent"]
    types = [pattern[layer % len(pattern)] for layer in range(layers)]
    recurrent = recurrences.gated_linear_recurrence(
        hidden,
        width=config.whole("lru_width", default=0) or hidden,
        num_heads=heads.num,
        kernel=config.size("conv1d_width"),
    )
    attending = attention(
        heads,
        qkv_bias=config.is_on("attention_bias"),
        out_bias=True,
        window=config.whole("attention_window_size", default=0),
    )
    network = FeedForward(feed_forward(hidden, config.size("intermediate_size") // 2, is_gated=True, has_bias=True))
    attends = [kind not in _RECURRENT for kind in types]
    return _alternating(config, heads, attends, attending, recurrent, [network] * layers)


def read_rwkv(config: ModelConfig) -> Workload:
    """Return RWKV-4."""
    hidden, layers = config.size("hidden_size"), num_layers(config)
    width = config.whole("intermediate_size", default=0) or 4 * hidden
    mixing = recurrences.rwkv(hidden, config.whole("attention_hidden_size", default=0) or hidden)
    receptance = matrix("ffn", "receptance", hidden, hidden)
    network = FeedForward((*feed_forward(hidden, width, is_gated=False), receptance), other_parameters=2 * hidden)
    return assembled(
        config,
        Heads(hidden, 1, 1, hidden),
        [mixing] * layers,
        [network] * layers,
        norms_per_layer=lambda layer: 4 * hidden + (2 * hidden if layer == 0 else 0),
        is_gated=False,
        outside_parameters=2 * hidden,
    )


def read_lfm2(config: ModelConfig) -> Workload:
    """Return LFM2: short convolutions and attention by layer, with experts after the dense layers in some."""
    heads, layers = read_heads(config), num_layers(config)
    types = config.texts("layer_types")
    if types is None:
        listed = config.value("full_attn_idxs")
        types = ["full_attention" if listed is None or layer in listed else "conv" for layer in range(layers)]
    check_length(config, "layer_types", types, layers)
    attending = attention(heads, other_parameters=2 * heads.dim)
    recurrent = recurrences.short_convolution(
        heads.hidden, kernel=config.size("conv_L_cache"), bias=config.is_on("conv_bias")
    )
    dense = FeedForward(feed_forward(heads.hidden, _lfm2_width(config), is_gated=True))
    networks = [dense] * layers
    if config.whole("num_experts", default=0):
        routed = expert_network(config, ExpertTraits())
        num_dense = config.whole("num_dense_layers", default=0)
        networks = [dense if layer < num_dense else routed for layer in range(layers)]
    attends = [kind not in _RECURRENT for kind in types]
    return _alternating(config, heads, attends, attending, recurrent, networks)


def _lfm2_width(config: ModelConfig) -> int:
    width = config.size("block_ff_dim", "intermediate_size")
    if not config.is_on("block_auto_adjust_ff_dim"):
        return width
    width = int(2 * width / 3)
    factor = config.value("block_ffn_dim_multiplier")
    if factor is None:
        return width
    multiple = config.size("block_multiple_of")
    return multiple * math.ceil(int(factor * width) / multiple)


def _alternating(
    config: ModelConfig,
    heads: Heads,
    attends: list[bool],
    attending: Mixing,
    recurrent: Mixing,
    networks: list[FeedForward],
) -> Workload:
    """Return a model whose layers have two norms, and either attention or a recurrence."""
    return assembled(
        config,
        heads,
        [attending if is_attention else recurrent for is_attention in attends],
        networks,
        norms_per_layer=2 * heads.hidden,
        outside_parameters=heads.hidden,
    )


def _biased_attention(config: ModelConfig, heads: Heads) -> Mixing:
    bias = config.is_on("attention_bias")
    return attention(heads, qkv_bias=bias, out_bias=bias)


def _mamba2_of_bamba(
    config: ModelConfig, *, inner: int = 0, out_bias: bool | None = None, has_norm: bool = True
) -> Mixing:
    hidden, bias = config.size("hidden_size"), config.is_on("mamba_proj_bias")
    return recurrences.mamba2(
        hidden,
        inner or config.size("mamba_expand") * hidden,
        config.size("mamba_d_state"),
        num_heads=config.size("mamba_n_heads"),
        groups=config.size("mamba_n_groups"),
        kernel=config.size("mamba_d_conv"),
        conv_bias=config.is_on("mamba_conv_bias"),
        bias=bias,
        out_bias=bias if out_bias is None else out_bias,
        has_norm=has_norm,
    )


def _step_rank(config: ModelConfig, name: str, hidden: int) -> int:
    """Return the rank of the time step's projection; `auto` is a 16th of the hidden width."""
    return math.ceil(hidden / 16) if config.value(name) == "auto" else config.size(name)
