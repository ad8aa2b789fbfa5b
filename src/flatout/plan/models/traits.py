"""The traits of decoders that are built of attention and a feed-forward network, by model type.

A trait that depends on the config is the name of its key; one that all models of the type share is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass

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


_BY_KEYS = {"qkv_bias": "attention_bias", "out_bias": "attention_bias"}
_ALL_BY_KEYS = {**_BY_KEYS, "ffn_bias": "mlp_bias"}
_ALL_BIASED = {"qkv_bias": True, "out_bias": True, "ffn_bias": True}
_GPT = {**_ALL_BIASED, "norm": "affine", "is_gated": False}
_BY_USE_BIAS = {"qkv_bias": "use_bias", "out_bias": "use_bias", "ffn_bias": "use_bias"}
_GEMMA_2 = {**_BY_KEYS, "norms": 4}

TRAITS = {
    "llama": Traits(**_ALL_BY_KEYS),
    "mistral": Traits(),
    "ministral": Traits(),
    "ministral3": Traits(),
    "mixtral": Traits(),
    "qwen2": Traits(qkv_bias=True, windows="switched"),
    "qwen2_vl_text": Traits(qkv_bias=True, windows="switched"),
    "qwen2_5_vl_text": Traits(qkv_bias=True, windows="switched"),
    "qwen3_vl_text": Traits(**_BY_KEYS, qk_norm="head"),
    "qwen3_vl_moe_text": Traits(**_BY_KEYS, qk_norm="head"),
    "qwen2_moe": Traits(qkv_bias="qkv_bias", windows="switched"),
    "qwen3": Traits(**_BY_KEYS, qk_norm="head", windows="switched"),
    "qwen3_moe": Traits(**_BY_KEYS, qk_norm="head", windows="switched"),
    "gemma": Traits(**_BY_KEYS),
    "gemma2": Traits(**_GEMMA_2, windows=2),
    "gemma3_text": Traits(**_GEMMA_2, qk_norm="head", windows=6),
    "vaultgemma": Traits(**_BY_KEYS, windows=2),
    "phi": Traits(**_GPT, norms=1, head_bias=True, qk_norm="affine-head", qk_norm_if="qk_layernorm"),
    "phi3": Traits(),
    "phimoe": Traits(**_BY_KEYS, norm="affine", head_bias="lm_head_bias"),
    "cohere": Traits(**_BY_KEYS, norms=1, qk_norm="all", qk_norm_if="use_qk_norm"),
    "cohere2": Traits(**_BY_KEYS, norms=1, windows=4),
    "olmo": Traits(**_BY_KEYS, norm="none"),
    "olmo2": Traits(**_BY_KEYS, qk_norm="all"),
    "olmo3": Traits(**_BY_KEYS, qk_norm="all", windows=4),
    "olmoe": Traits(**_BY_KEYS, qk_norm="all"),
    "flex_olmo": Traits(**_BY_KEYS, qk_norm="all"),
    "glm": Traits(qkv_bias="attention_bias"),
    "glm4": Traits(qkv_bias="attention_bias", norms=4),
    "glm4_moe": Traits(qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm"),
    "stablelm": Traits(
        qkv_bias="use_qkv_bias",
        norm="affine",
        one_norm_if="use_parallel_residual",
        qk_norm="all",
        qk_norm_if="qk_layernorm",
    ),
    "starcoder2": Traits(**_BY_USE_BIAS, norm="affine", is_gated=False),
    "smollm3": Traits(**_ALL_BY_KEYS, windows="switched"),
    "exaone4": Traits(qk_norm="head", windows=4),
    "granite": Traits(**_ALL_BY_KEYS),
    "granitemoe": Traits(**_BY_KEYS),
    "granitemoeshared": Traits(**_BY_KEYS),
    "nemotron": Traits(**_ALL_BY_KEYS, norm="affine", is_gated=False),
    "persimmon": Traits(**_GPT, qk_norm="affine-head", qk_norm_if="qk_layernorm"),
    "helium": Traits(qkv_bias="attention_bias", ffn_bias="mlp_bias"),
    "apertus": Traits(**_BY_KEYS, is_gated=False, qk_norm="head", activation_parameters=2),
    "arcee": Traits(**_ALL_BY_KEYS, is_gated=False),
    "seed_oss": Traits(qkv_bias="attention_bias", out_bias="attention_out_bias", ffn_bias="mlp_bias"),
    "ernie4_5": Traits(**_BY_USE_BIAS),
    "ernie4_5_moe": Traits(**_BY_USE_BIAS, head_bias="use_bias"),
    "hunyuan_v1_dense": Traits(**_BY_KEYS, qk_norm="head"),
    "hunyuan_v1_moe": Traits(**_BY_KEYS, qk_norm="head"),
    "dots1": Traits(**_BY_KEYS, qk_norm="head", windows="layers"),
    "minimax_m2": Traits(qk_norm="all"),
    "gpt_oss": Traits(**_BY_KEYS, windows=2, has_sinks=True),
    "gpt2": Traits(**_GPT, positions="n_positions"),
    "gpt_bigcode": Traits(**_GPT, positions="n_positions"),
    "falcon": Traits(
        qkv_bias="bias", out_bias="bias", ffn_bias="bias", norm="affine", one_norm_if="parallel_attn", is_gated=False
    ),
    "gpt_neox": Traits(**{**_GPT, **_BY_KEYS}),
    "gptj": Traits(ffn_bias=True, norm="affine", is_gated=False, norms=1, head_bias=True),
    "codegen": Traits(ffn_bias=True, norm="affine", is_gated=False, norms=1, head_bias=True),
    "bloom": Traits(**_GPT, embedding_norm=True),
    "biogpt": Traits(**_GPT, positions="max_position_embeddings", more_positions=2),
    "xglm": Traits(**_GPT),
}
