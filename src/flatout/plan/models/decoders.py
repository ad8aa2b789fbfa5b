"""Read decoders whose layers are attention and a feed-forward network, by the traits of their type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.plan.models.config import MOST_LAYERS, ModelConfig
from flatout.plan.models.experts import feed_forward_of_layers
from flatout.plan.models.parts import FeedForward, Heads, Mixing, attention
from flatout.plan.models.traits import TRAITS, Switch, Traits
from flatout.records.layers import LayerKind, Matrix
from flatout.records.plan import Workload

HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
WIDTH = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
_NO_EXPERTS = Matrix(name="", part="experts", inputs=0, outputs=0, copies=0, used=0)
_WINDOWED = ("sliding_attention", "chunked_attention", "local_attention")


def read_decoder(config: ModelConfig) -> Workload:
    """Return the workload of a decoder type in `TRAITS`."""
    traits = TRAITS[config.model_type]
    heads = read_heads(config)
    mixings = [_attention(config, traits, heads, window) for window in windows(config, traits.windows)]
    networks = feed_forward_of_layers(config, traits)
    hidden = heads.hidden
    final_norm = norm_parameters(traits.norm, hidden)
    outside = final_norm
    if traits.positions:
        outside += (config.size(traits.positions) + traits.more_positions) * hidden
    if traits.embedding_norm:
        outside += norm_parameters(traits.norm, hidden)
    if switched(config, traits.head_bias):
        outside += config.size("vocab_size")
    workload = assembled(
        config,
        heads,
        mixings,
        networks,
        norms_per_layer=num_norms(config, traits) * norm_parameters(traits.norm, hidden),
        is_gated=traits.is_gated,
        outside_parameters=outside,
    )
    return msgspec.structs.replace(workload, **_described(config, traits))


def _described(config: ModelConfig, traits: Traits) -> dict[str, Any]:
    """Return the traits that other tools have settings for; the layers say everything that is counted."""
    has_qkv_bias, has_out_bias = switched(config, traits.qkv_bias), switched(config, traits.out_bias)
    has_bias = has_qkv_bias and has_out_bias and switched(config, traits.ffn_bias)
    is_qk_norm_on = not traits.qk_norm_if or config.is_on(traits.qk_norm_if)
    return {
        "has_bias": has_bias,
        "has_qkv_bias": has_qkv_bias and not has_bias,
        "has_qk_norm": bool(traits.qk_norm) and is_qk_norm_on,
        "max_positions": config.size(traits.positions) if traits.positions else 0,
    }


def read_heads(config: ModelConfig) -> Heads:
    """Return the sizes of the heads. Raise InputError if the key-value heads do not divide the heads."""
    hidden, num = config.size(*HIDDEN), config.size(*HEADS)
    num_kv = config.whole("num_key_value_heads", default=0) or num
    if config.is_on("new_decoder_architecture"):  # Falcon 40B and larger
        num_kv = config.whole("num_kv_heads", default=num)
    elif config.is_on("multi_query"):
        num_kv = 1
    if num % num_kv:
        raise InputError(
            f"the key-value heads of `{config.path}` must divide the heads, but there are {num_kv} of {num}"
        )
    dim = config.whole("head_dim", default=0) or hidden // num
    return Heads(hidden, num, num_kv, dim)


def num_layers(config: ModelConfig) -> int:
    """Return the number of layers. Raise InputError for more than any model has."""
    layers = config.size(*LAYERS)
    if layers > MOST_LAYERS:
        raise InputError(f"`{LAYERS[0]}` in `{config.path}` must be at most {MOST_LAYERS:,}, but is {layers:,}")
    return layers


def switched(config: ModelConfig, switch: Switch) -> bool:
    """Whether a trait is on."""
    return config.is_on(switch) if isinstance(switch, str) else switch


def norm_parameters(norm: str, size: int) -> int:
    """Return the parameters of one norm."""
    return {"scale": 1, "affine": 2, "none": 0}[norm] * size


def num_norms(config: ModelConfig, traits: Traits) -> int:
    """Return the number of a layer's norms; attention and a network that run in parallel share one."""
    is_parallel = traits.one_norm_if and config.is_on(traits.one_norm_if)
    usual = 2 if config.is_on("new_decoder_architecture") else 1
    has_two = config.whole("num_ln_in_parallel_attn", default=usual) == 2
    return 1 if is_parallel and not has_two else traits.norms


def windows(config: ModelConfig, rule: str | int) -> list[int]:
    """Return each layer's window; 0 for a layer that attends to all tokens."""
    layers = num_layers(config)
    if not config.knows("sliding_window"):
        return [0] * layers
    window = config.whole("sliding_window", default=0)
    types = config.texts("layer_types")
    if types is not None:
        check_length(config, "layer_types", types, layers)
        return [window if kind in _WINDOWED else 0 for kind in types]
    if not window:
        return [0] * layers
    return [window if is_windowed else 0 for is_windowed in _are_windowed(config, rule, layers)]


def _are_windowed(config: ModelConfig, rule: str | int, layers: int) -> list[bool]:
    """Whether each layer has the window, if the config does not give the layers' types."""
    if rule == "all":
        return [True] * layers
    if rule in ("switched", "layers"):
        is_on = rule == "layers" or config.is_on("use_sliding_window")
        first = config.whole("max_window_layers", default=layers)
        return [is_on and layer >= first for layer in range(layers)]
    pattern = config.value("sliding_window_pattern", "_sliding_window_pattern") or rule
    every = len(pattern) if isinstance(pattern, str) else int(pattern)
    return [(layer + 1) % every > 0 for layer in range(layers)]


def check_length(config: ModelConfig, name: str, values: list[str], layers: int) -> None:
    """Raise InputError if a list does not have one value per layer."""
    if len(values) != layers:
        raise InputError(
            f"`{name}` in `{config.path}` must have one word for each of the {layers} layers, but has {len(values)}"
        )


def _attention(config: ModelConfig, traits: Traits, heads: Heads, window: int) -> Mixing:
    return attention(
        heads,
        qkv_bias=switched(config, traits.qkv_bias),
        out_bias=switched(config, traits.out_bias),
        other_parameters=_qk_norms(config, traits, heads) + (heads.num if traits.has_sinks else 0),
        window=window,
    )


def _qk_norms(config: ModelConfig, traits: Traits, heads: Heads) -> int:
    """Return the parameters of the norms of queries and keys."""
    is_off = traits.qk_norm_if and not config.is_on(traits.qk_norm_if)
    if not traits.qk_norm or is_off:
        return 0
    return {"head": 2 * heads.dim, "affine-head": 4 * heads.dim, "all": heads.queries + heads.keys}[traits.qk_norm]


def assembled(
    config: ModelConfig,
    heads: Heads,
    mixings: list[Mixing],
    networks: list[FeedForward],
    *,
    norms_per_layer: int | Callable[[int], int],
    is_gated: bool = True,
    outside_parameters: int,
    is_causal: bool = True,
    table_width: int = 0,
) -> Workload:
    """Return the workload of layers that each mix tokens and then feed forward, grouped by kind."""
    kinds: dict[tuple[Mixing, FeedForward, int], int] = {}
    numbers: list[int] = []
    for layer, parts in enumerate(zip(mixings, networks, strict=True)):
        norms = norms_per_layer if isinstance(norms_per_layer, int) else norms_per_layer(layer)
        key = (*parts, norms)
        kinds[key] = kinds.get(key, 0) + 1
        numbers.append(list(kinds).index(key))
    workload = of_kinds(
        config,
        heads,
        tuple(layer_kind(mixing, network, norms, num) for (mixing, network, norms), num in kinds.items()),
        is_gated=is_gated,
        outside_parameters=outside_parameters,
        is_causal=is_causal,
        table_width=table_width,
    )
    return msgspec.structs.replace(workload, kind_of_layer=tuple(numbers))


def assembled_alike(
    config: ModelConfig,
    heads: Heads,
    mixing: Mixing,
    network: FeedForward,
    *,
    norms_per_layer: int,
    is_gated: bool = True,
    outside_parameters: int,
    is_causal: bool = True,
    table_width: int = 0,
) -> Workload:
    """Return the workload of layers that all mix tokens and feed forward in the same way."""
    return of_kinds(
        config,
        heads,
        (layer_kind(mixing, network, norms_per_layer, num_layers(config)),),
        is_gated=is_gated,
        outside_parameters=outside_parameters,
        is_causal=is_causal,
        table_width=table_width,
    )


def layer_kind(mixing: Mixing, network: FeedForward, norms: int, num_layers: int, num_distinct: int = 0) -> LayerKind:
    """Return the layers that mix and feed forward in the same way."""
    return LayerKind(
        mixing=mixing.kind,
        num_layers=num_layers,
        matrices=(*mixing.matrices, *network.matrices),
        other_parameters=mixing.other_parameters + network.other_parameters + norms,
        window=mixing.window,
        score_width=mixing.score_width,
        kv_width=mixing.kv_width,
        cross_width=mixing.cross_width,
        cross_attended=mixing.cross_attended,
        recurrence=mixing.recurrence,
        num_distinct=num_distinct,
    )


def of_kinds(
    config: ModelConfig,
    heads: Heads,
    kinds: tuple[LayerKind, ...],
    *,
    is_gated: bool = True,
    outside_parameters: int,
    is_causal: bool = True,
    table_width: int = 0,
) -> Workload:
    """Return a workload of layers, with the widths of its largest kinds for what describes a model by a few numbers."""
    with_experts = [kind for kind in kinds if _routed(kind)]
    expert = _routed(with_experts[0])[0] if with_experts else _NO_EXPERTS
    return Workload(
        name=str(config.values.get("_name_or_path") or config.path.parent.name or config.path.name),
        num_layers=sum(kind.num_layers for kind in kinds),
        hidden=heads.hidden,
        num_heads=heads.num,
        num_kv_heads=heads.num_kv,
        head_dim=heads.dim,
        ffn=_width(kinds, "ffn"),
        is_gated=is_gated,
        vocab=config.size("vocab_size"),
        is_tied=config.is_on("tie_word_embeddings"),
        is_causal=is_causal,
        num_experts=expert.copies,
        experts_per_token=expert.used,
        expert_ffn=expert.outputs,
        shared_ffn=_width(kinds, "shared"),
        num_moe_layers=sum(kind.num_layers for kind in with_experts),
        layers=kinds,
        outside_parameters=outside_parameters,
        table_width=table_width,
        source=str(config.path),
    )


def _routed(kind: LayerKind) -> list[Matrix]:
    """Return the matrices of the experts that a router chooses from."""
    return [matrix for matrix in kind.matrices if matrix.part == "experts" and matrix.copies > 1]


def _width(kinds: tuple[LayerKind, ...], part: str) -> int:
    """Return the width of the first network of this part; 0 if no layer has one."""
    widths = [matrix.outputs for kind in kinds for matrix in kind.matrices if matrix.part == part]
    return widths[0] if widths else 0
