"""Read models of single blocks: each layer is one recurrence, attention or network (Nemotron-H), or shares a block."""

from __future__ import annotations

import msgspec

from flatout.errors import InputError
from flatout.plan.models import recurrences
from flatout.plan.models.config import ModelConfig
from flatout.plan.models.decoders import assembled, check_length, layer_kind, num_layers, of_kinds
from flatout.plan.models.parts import (
    NO_FEED_FORWARD,
    NO_MIXING,
    FeedForward,
    Heads,
    Mixing,
    attention,
    experts,
    feed_forward,
    matrix,
)
from flatout.records.layers import Matrix
from flatout.records.plan import Workload

_ZAMBA_LAYERS = [
    *("mamba", *(("mamba",) * 5 + ("hybrid",)) * 7),
    *(("mamba",) * 4 + ("hybrid",) + ("mamba",) * 3 + ("hybrid",) + ("mamba",) * 2),
]


def read_nemotron_h(config: ModelConfig) -> Workload:
    """Return Nemotron-H: each layer is Mamba-2, attention, a network or experts, by a pattern of letters or words."""
    words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    pattern = config.value("hybrid_override_pattern")
    types = config.texts("layers_block_type", "layer_types")
    if types is None and isinstance(pattern, str):
        wrong = sorted(set(pattern) - set(words))
        if wrong:
            raise InputError(
                f"`hybrid_override_pattern` in `{config.path}` must be of {', '.join(words)}, but has `{wrong[0]}`"
            )
        types = [words[letter] for letter in pattern]
    types = types or ["mamba", "moe", "attention", "mlp"]
    hidden = config.size("hidden_size")
    num = config.size("num_attention_heads")
    heads = Heads(hidden, num, config.whole("num_key_value_heads", default=num), config.size("head_dim"))
    recurrent = _mamba2_of_nemotron(config)
    dense = FeedForward(
        feed_forward(hidden, config.whole("intermediate_size"), is_gated=False, has_bias=config.is_on("mlp_bias"))
    )
    of_type: dict[str, tuple[Mixing, FeedForward]] = {
        "mamba": (recurrent, NO_FEED_FORWARD),
        "linear_attention": (recurrent, NO_FEED_FORWARD),
        "attention": (attention(heads), NO_FEED_FORWARD),
        "full_attention": (attention(heads), NO_FEED_FORWARD),
        "mlp": (NO_MIXING, dense),
    }
    if "moe" in types:
        of_type["moe"] = (NO_MIXING, _nemotron_experts(config))
    unknown = [kind for kind in types if kind not in of_type]
    if unknown:
        raise InputError(f"a layer of `{config.path}` must be one of {', '.join(of_type)}, but is `{unknown[0]}`")
    parts = [of_type[kind] for kind in types]
    workload = assembled(
        config,
        heads,
        [mixing for mixing, _ in parts],
        [network for _, network in parts],
        norms_per_layer=hidden,
        is_gated=False,
        outside_parameters=hidden,
    )
    # transformers ties no tables of it, whatever the config says
    return msgspec.structs.replace(workload, is_tied=False)


def _nemotron_experts(config: ModelConfig) -> FeedForward:
    hidden = config.size("hidden_size")
    latent = config.whole("moe_latent_size", default=0)
    shared = config.whole("moe_shared_expert_intermediate_size", default=0)
    num, used = config.size("n_routed_experts"), config.size("num_experts_per_tok")
    width = config.size("moe_intermediate_size")
    network = experts(latent or hidden, width, num, used, is_gated=False)
    router = matrix("router", "router", hidden, num)
    routed = [each for each in network.matrices if each.part == "experts"]
    always = feed_forward(hidden, shared, is_gated=False, part="shared")
    if latent:
        always += (
            matrix("shared", "fc1_latent_proj", hidden, latent, has_bias=config.is_on("mlp_bias")),
            matrix("shared", "fc2_latent_proj", latent, hidden, has_bias=config.is_on("mlp_bias")),
        )
    return FeedForward((router, *routed, *always))


def read_zamba2(config: ModelConfig) -> Workload:
    """Return Zamba2: Mamba-2 layers, some of which follow one of a few transformer blocks whose weights are shared."""
    hidden, layers = config.size("hidden_size"), num_layers(config)
    types = config.texts("layers_block_type", "layer_types") or _ZAMBA_LAYERS
    check_length(config, "layers_block_type", types, layers)
    inner = int(config.whole("mamba_expand") * hidden)
    bias = config.is_on("add_bias_linear")
    recurrent = recurrences.mamba2(
        hidden,
        inner,
        config.size("mamba_d_state"),
        num_heads=config.size("n_mamba_heads"),
        groups=config.size("mamba_ngroups"),
        kernel=config.size("mamba_d_conv"),
        conv_bias=True,
        bias=bias,
        out_bias=bias,
    )
    num = config.size("num_attention_heads")
    num_kv = config.whole("num_key_value_heads", default=num)
    heads = Heads(2 * hidden, num, num_kv, 2 * hidden // num)
    wide = attention(heads)
    # The block reads the hidden state and the embedding together, and writes the hidden state.
    shared_mixing = wide._replace(matrices=(*wide.matrices[:3], matrix("out", "o_proj", heads.queries, hidden)))
    width = config.whole("intermediate_size", default=0) or 4 * hidden
    shared_network = FeedForward(feed_forward(hidden, width, is_gated=True, has_bias=bias))
    num_hybrid = sum(kind == "hybrid" for kind in types)
    adapters = _zamba_adapters(config, hidden, width)
    of_mamba = assembled(
        config, heads, [recurrent] * layers, [NO_FEED_FORWARD] * layers,
        norms_per_layer=hidden, outside_parameters=0,
    ).layers  # fmt: skip
    num_blocks = min(config.size("num_mem_blocks"), num_hybrid)
    shared = layer_kind(shared_mixing, shared_network, 3 * hidden, num_hybrid, num_blocks)
    own = layer_kind(NO_MIXING._replace(matrices=adapters), NO_FEED_FORWARD, 0, num_hybrid, num_hybrid)
    return of_kinds(
        config,
        Heads(hidden, num, num_kv, 2 * hidden // num),
        (*of_mamba, *((shared, own) if num_hybrid else ())),
        outside_parameters=hidden,
    )


def _zamba_adapters(config: ModelConfig, hidden: int, width: int) -> tuple[Matrix, ...]:
    """Return what each use of a shared block has for itself: adapters, and the matrix that joins it to its layer."""
    rank = config.whole("adapter_rank", default=0)
    matrices = [
        matrix("ffn", "gate_up_proj_adapter_a", hidden, rank),
        matrix("ffn", "gate_up_proj_adapter_b", rank, 2 * width),
        matrix("out", "linear", hidden, hidden),
    ]
    if config.is_on("use_shared_attention_adapter"):
        for name in ("q", "k", "v"):
            matrices.append(matrix("in", f"linear_{name}_adapter_a", 2 * hidden, rank))
            matrices.append(matrix("in", f"linear_{name}_adapter_b", rank, 2 * hidden))
    return tuple(matrices)


def _mamba2_of_nemotron(config: ModelConfig) -> Mixing:
    num_heads = config.size("mamba_num_heads")
    bias = config.is_on("use_bias")
    return recurrences.mamba2(
        config.size("hidden_size"),
        num_heads * config.size("mamba_head_dim"),
        config.size("ssm_state_size"),
        num_heads=num_heads,
        groups=config.size("mamba_n_groups", "n_groups"),
        kernel=config.size("mamba_d_conv", "conv_kernel"),
        conv_bias=config.is_on("mamba_conv_bias", "use_conv_bias"),
        bias=bias,
        out_bias=bias,
    )
