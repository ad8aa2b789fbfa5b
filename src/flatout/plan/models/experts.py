"""Read the feed-forward networks of each layer: dense ones, and experts with the shared ones of their type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from flatout.errors import InputError
from flatout.plan.models.config import ModelConfig
from flatout.plan.models.parts import FeedForward, experts, feed_forward
from flatout.plan.models.traits import Traits

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
_WIDTH = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertTraits:
    """The keys of a type's experts."""

    num: tuple[str, ...] = ("num_local_experts", "num_experts", "n_routed_experts")
    used: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size",)  # the dense width if the config has none of these
    shared_width: str = ""  # key of the width of all shared experts together
    num_shared: str = ""  # key of the number of shared experts, each as wide as a routed one
    has_shared_gate: bool = False  # one weight per element that scales the shared expert
    has_router_bias: bool = False  # a trained correction per expert
    has_bias: bool = False
    shared_bias: str = ""  # key that gives the shared experts' matrices biases, where the routed ones have none
    is_expert_layer: Callable[[ModelConfig, int], bool] = lambda config, layer: True


def _listed(config: ModelConfig, layer: int) -> bool:
    """All layers but the first have experts, unless they are listed (GLM-4.7-Flash)."""
    types = config.texts("mlp_layer_types")
    if types is not None and layer < len(types):
        return types[layer] == "sparse"
    return layer >= 1


def _listed_or_after_dense(config: ModelConfig, layer: int) -> bool:
    """The same, but the config may say how many of the first layers are dense (EXAONE)."""
    if config.texts("mlp_layer_types") is not None:
        return _listed(config, layer)
    return layer >= config.whole("first_k_dense_replace", default=1)


def _after_dense(config: ModelConfig, layer: int) -> bool:
    """The first layers are dense, and then every n-th has experts (DeepSeek)."""
    every = config.whole("moe_layer_freq", default=1)
    return layer >= config.whole("first_k_dense_replace", default=0) and layer % max(every, 1) == 0


def _sparse_step(config: ModelConfig, layer: int) -> bool:
    """Every n-th layer has experts, except those that are listed (Qwen)."""
    step = config.whole("decoder_sparse_step", default=1)
    listed_dense = config.value("mlp_only_layers") or []
    return layer not in listed_dense and step > 0 and (layer + 1) % step == 0


def _ernie_range(config: ModelConfig, layer: int) -> bool:
    last = config.value("moe_layer_end_index")
    last = config.whole(*_LAYERS) - 1 if last is None or last == -1 else int(last)
    interval = config.whole("moe_layer_interval", default=1)
    return (layer + 1) % interval == 0 and config.whole("moe_layer_start_index", default=0) <= layer <= last


_QWEN = ExpertTraits(is_expert_layer=_sparse_step)
_DEEPSEEK = ExpertTraits(num_shared="n_shared_experts", is_expert_layer=_after_dense)
EXPERTS: dict[str, ExpertTraits] = {
    "mixtral": ExpertTraits(),
    "minimax": ExpertTraits(),
    "minimax_m2": ExpertTraits(),
    "phimoe": ExpertTraits(),
    "olmoe": ExpertTraits(),
    "flex_olmo": ExpertTraits(),
    "granitemoe": ExpertTraits(),
    "granitemoeshared": ExpertTraits(shared_width="shared_intermediate_size"),
    "granitemoehybrid": ExpertTraits(shared_width="shared_intermediate_size"),
    "gpt_oss": ExpertTraits(has_bias=True),
    "qwen2_moe": replace(_QWEN, shared_width="shared_expert_intermediate_size", has_shared_gate=True),
    "qwen3_moe": _QWEN,
    "qwen3_vl_moe_text": _QWEN,
    "qwen3_next": replace(_QWEN, shared_width="shared_expert_intermediate_size", has_shared_gate=True),
    "qwen3_5_moe_text": ExpertTraits(shared_width="shared_expert_intermediate_size", has_shared_gate=True),
    "deepseek": _DEEPSEEK,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "mistral4": _DEEPSEEK,
    "sarvam_mla": _DEEPSEEK,
    "sarvam_moe": _DEEPSEEK,
    "glm4_moe": _DEEPSEEK,
    "glm4_moe_lite": ExpertTraits(num_shared="n_shared_experts", is_expert_layer=_listed),
    "dots1": _DEEPSEEK,
    "solar_open": _DEEPSEEK,
    "exaone_moe": ExpertTraits(num_shared="num_shared_experts", is_expert_layer=_listed_or_after_dense),
    "mellum": _QWEN,
    "granitemoe_swa": ExpertTraits(),
    "ernie4_5_moe": ExpertTraits(
        num=("moe_num_experts",), used=("moe_k",), num_shared="moe_num_shared_experts", has_router_bias=True,
        shared_bias="use_bias", is_expert_layer=_ernie_range,
    ),
    "hunyuan_v1_moe": ExpertTraits(
        used=("moe_topk",), width=("intermediate_size", "moe_intermediate_size"), num_shared="num_shared_expert"
    ),
    "jamba": ExpertTraits(
        is_expert_layer=lambda config, layer: (
            layer % config.size("expert_layer_period") == config.whole("expert_layer_offset")
        )
    ),
}  # fmt: skip


def dense_width(config: ModelConfig) -> int:
    """Return the width of the dense feed-forward network: 4 times the hidden width if none is given."""
    return config.whole(*_WIDTH, default=0) or 4 * config.size(*_HIDDEN)


def feed_forward_of_layers(config: ModelConfig, traits: Traits) -> list[FeedForward]:
    """Return the feed-forward network of each layer."""
    has_bias = config.is_on(traits.ffn_bias) if isinstance(traits.ffn_bias, str) else traits.ffn_bias
    hidden, layers = config.size(*_HIDDEN), config.size(*_LAYERS)
    dense = FeedForward(
        feed_forward(hidden, dense_width(config), is_gated=traits.is_gated, has_bias=has_bias),
        traits.activation_parameters,
    )
    expert_traits = EXPERTS.get(config.model_type)
    if expert_traits is None or not config.whole(*expert_traits.num, default=0):
        return [dense] * layers
    with_experts = expert_network(config, expert_traits, is_gated=traits.is_gated)
    return [with_experts if expert_traits.is_expert_layer(config, layer) else dense for layer in range(layers)]


def expert_network(config: ModelConfig, traits: ExpertTraits, *, is_gated: bool = True) -> FeedForward:
    """Return the network of a layer with experts. Raise InputError if a token uses more experts than the layer has."""
    hidden = config.size(*_HIDDEN)
    num, used = uniform(config, *traits.num), uniform(config, *traits.used)
    if not 0 < used <= num:
        raise InputError(
            f"the experts of a token of `{config.path}` must be at least 1 and at most all experts, but there are "
            f"{used} of {num}"
        )
    width = config.whole(*traits.width, default=0) or dense_width(config)
    shared_width = config.whole(traits.shared_width, default=0) if traits.shared_width else 0
    if traits.num_shared:
        shared_width = uniform(config, traits.num_shared, default=0) * width
    other = hidden if traits.has_shared_gate and shared_width else 0
    if traits.has_router_bias:
        other += num
    if traits.shared_bias and shared_width and config.is_on(traits.shared_bias):
        other += (2 if is_gated else 1) * shared_width + hidden
    return experts(
        hidden,
        width,
        num,
        used,
        shared_width=shared_width,
        is_gated=is_gated,
        has_bias=traits.has_bias,
        other_parameters=other,
    )


def uniform(config: ModelConfig, *names: str, default: int | None = None) -> int:
    """Return a number that some configs list once per layer. Raise InputError if it differs between layers."""
    value = config.value(*names)
    if isinstance(value, list | tuple) and value:
        if len(set(value)) > 1:
            raise InputError(f"`{names[0]}` in `{config.path}` must be the same in all layers, but is {value!r:.60}")
        return int(value[0])
    return config.whole(*names, default=default)
