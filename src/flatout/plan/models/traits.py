"""The traits of decoders that are built of attention and a feed-forward network, by model type.

A trait that depends on the config is the name of its key; one that all models of the type share is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Switch = bool | str  # always on or off, or the key that switches it


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a decoder type has besides its widths. The defaults are Llama's."""

    qkv_bias: Switch = False
    out_bias: Switch = False
    ffn_bias: Switch = False
    head_bias: Switch = False
    norm: str = "scale"  # `scale`: one weight per element (RMSNorm); `affine`: and a bias (LayerNorm); `none`
    final_norm: Switch = True
    norms: int = 2  # per layer
    one_norm_if: str = ""  # key under which a layer has a single norm
    # Norms of queries and keys. `head`: one shared by all heads; `affine-head`: that with biases; `all`: over all heads
    # together, or one per head. `qk_norm_if`: key that switches them; empty: always.
    qk_norm: str = ""
    qk_norm_if: str = ""
    has_sinks: bool = False  # one trained score per head that attends to nothing
    is_gated: bool = True
    activation_parameters: int = 0  # trained numbers of the activation in a layer
    positions: str = ""  # key of the rows of a learned position table
    more_positions: int = 0
    embedding_norm: bool = False
    # Layers with a window. `all`; `switched`: those that `use_sliding_window` and `max_window_layers` name; a number n:
    # all but each n-th layer.
    windows: str | int = "all"


_BY_KEYS = Traits(qkv_bias="attention_bias", out_bias="attention_bias")
_ALL_BY_KEYS = replace(_BY_KEYS, ffn_bias="mlp_bias")
_BY_USE_BIAS = Traits(qkv_bias="use_bias", out_bias="use_bias", ffn_bias="use_bias")
_GPT = Traits(qkv_bias=True, out_bias=True, ffn_bias=True, norm="affine", is_gated=False)
_GEMMA_2 = replace(_BY_KEYS, norms=4)

TRAITS: dict[str, Traits] = {
    "llama": _ALL_BY_KEYS,
    "mistral": Traits(),
    "ministral": Traits(),
    "ministral3": Traits(),
    "mixtral": Traits(),
    # These models are on the Hub only.
    "internlm2": Traits(qkv_bias="bias", out_bias="bias"),
    "baichuan": Traits(),
    "deepseek": _BY_KEYS,
    "qwen2": Traits(qkv_bias=True, windows="switched"),
    "qwen2_vl_text": Traits(qkv_bias=True, windows="switched"),
    "qwen2_5_vl_text": Traits(qkv_bias=True, windows="switched"),
    "qwen3_vl_text": replace(_BY_KEYS, qk_norm="head"),
    "qwen3_vl_moe_text": replace(_BY_KEYS, qk_norm="head"),
    "qwen2_moe": Traits(qkv_bias="qkv_bias", windows="switched"),
    "qwen3": replace(_BY_KEYS, qk_norm="head", windows="switched"),
    "qwen3_moe": replace(_BY_KEYS, qk_norm="head", windows="switched"),
    "gemma": _BY_KEYS,
    "gemma2": replace(_GEMMA_2, windows=2),
    "gemma3_text": replace(_GEMMA_2, qk_norm="head", windows=6),
    "vaultgemma": replace(_BY_KEYS, windows=2),
    "phi": replace(_GPT, norms=1, head_bias=True, qk_norm="affine-head", qk_norm_if="qk_layernorm"),
    "phi3": Traits(),
    "phimoe": replace(_BY_KEYS, norm="affine", head_bias="lm_head_bias"),
    "cohere": replace(_BY_KEYS, norms=1, qk_norm="all", qk_norm_if="use_qk_norm"),
    "cohere2": replace(_BY_KEYS, norms=1, windows=4),
    "olmo": replace(_BY_KEYS, norm="none"),
    "olmo2": replace(_BY_KEYS, qk_norm="all"),
    "olmo3": replace(_BY_KEYS, qk_norm="all", windows=4),
    "olmoe": replace(_BY_KEYS, qk_norm="all"),
    "flex_olmo": replace(_BY_KEYS, qk_norm="all"),
    "glm": Traits(qkv_bias="attention_bias"),
    "glm4": Traits(qkv_bias="attention_bias", norms=4),
    "glm4_moe": Traits(qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm"),
    "sarvam_moe": Traits(qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm"),
    "stablelm": Traits(
        qkv_bias="use_qkv_bias",
        norm="affine",
        one_norm_if="use_parallel_residual",
        qk_norm="all",
        qk_norm_if="qk_layernorm",
    ),
    "starcoder2": replace(_BY_USE_BIAS, norm="affine", is_gated=False),
    "smollm3": replace(_ALL_BY_KEYS, windows="switched"),
    "exaone4": Traits(qk_norm="head", windows=4),
    "exaone": Traits(),
    "exaone_moe": Traits(qk_norm="head", windows=4),
    "solar_open": _BY_KEYS,
    "iquestcoder": _ALL_BY_KEYS,
    "mellum": Traits(qk_norm="head"),
    "nanochat": Traits(norm="none", is_gated=False),
    "jais2": _GPT,
    "granite": _ALL_BY_KEYS,
    "granite_swa": replace(_ALL_BY_KEYS, has_sinks=True),
    "granitemoe_swa": replace(_BY_KEYS, has_sinks=True),
    "granitemoe": _BY_KEYS,
    "granitemoeshared": _BY_KEYS,
    "nemotron": replace(_ALL_BY_KEYS, norm="affine", is_gated=False),
    "persimmon": replace(_GPT, qk_norm="affine-head", qk_norm_if="qk_layernorm"),
    "helium": Traits(qkv_bias="attention_bias", ffn_bias="mlp_bias"),
    "apertus": replace(_BY_KEYS, is_gated=False, qk_norm="head", activation_parameters=2),
    "arcee": replace(_ALL_BY_KEYS, is_gated=False),
    "seed_oss": Traits(qkv_bias="attention_bias", out_bias="attention_out_bias", ffn_bias="mlp_bias"),
    "ernie4_5": _BY_USE_BIAS,
    "ernie4_5_moe": replace(_BY_USE_BIAS, head_bias="use_bias"),
    "hunyuan_v1_dense": replace(_BY_KEYS, qk_norm="head"),
    "hunyuan_v1_moe": replace(_BY_KEYS, qk_norm="head"),
    "dots1": replace(_BY_KEYS, qk_norm="head", windows="layers"),
    "minimax_m2": Traits(qk_norm="all"),
    "gpt_oss": replace(_BY_KEYS, windows=2, has_sinks=True),
    "gpt2": replace(_GPT, positions="n_positions"),
    "gpt_bigcode": replace(_GPT, positions="n_positions"),
    "falcon": Traits(
        qkv_bias="bias", out_bias="bias", ffn_bias="bias", norm="affine", one_norm_if="parallel_attn", is_gated=False
    ),
    "gpt_neox": replace(_GPT, qkv_bias="attention_bias", out_bias="attention_bias"),
    "gptj": Traits(ffn_bias=True, norm="affine", is_gated=False, norms=1, head_bias=True),
    "codegen": Traits(ffn_bias=True, norm="affine", is_gated=False, norms=1, head_bias=True),
    "bloom": replace(_GPT, embedding_norm=True),
    "biogpt": replace(_GPT, positions="max_position_embeddings", more_positions=2),
    "xglm": _GPT,
}
