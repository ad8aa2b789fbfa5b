"""A Hugging Face `config.json` -> the workload whose shape it describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.records.plan import Workload

# The few architectures whose config.json does not say everything: what is in their code instead.
_GATED_ACTIVATIONS = ("silu", "swiglu", "swish", "geglu")
_QK_NORM = ("qwen3", "qwen3_moe")


def from_config(path: Path) -> Workload:
    """The shape in a Hugging Face `config.json`. InputError: unreadable, or no decoder or encoder that is known."""
    try:
        config = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"`{path}` is no JSON: {error}", hint="give the config.json of a Hugging Face model"
        ) from error
    if not isinstance(config, dict):
        raise InputError(f"`{path}` must hold one JSON object, but holds a {type(config).__name__}")
    config = config.get("text_config") or config
    for name in (
        "hidden_size",
        "n_embd",
        "num_hidden_layers",
        "n_layer",
        "num_attention_heads",
        "n_head",
        "vocab_size",
    ):
        value = config.get(name, 1)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"`{name}` in `{path}` must be a whole number of at least 1, but is {value!r}")
    return from_dict(path, config)


def _some(config: dict[str, Any]) -> str:
    names = sorted(config)
    if not names:
        return "nothing in it"
    return f"only: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


def from_dict(path: Path, config: dict[str, Any]) -> Workload:
    """The same of what was read already; `path` is for messages."""
    try:
        return _workload(path, config)
    except KeyError as error:
        raise InputError(
            f"`{path}` must say `{error.args[0]}`, but has {_some(config)}",
            hint="a transformer's config.json has num_hidden_layers, hidden_size and num_attention_heads",
        ) from error
    except (TypeError, ValueError) as error:
        raise InputError(f"`{path}`: a number in it is no number: {error}") from error


def _first(config: dict[str, Any], *names: str, default: Any = None) -> Any:
    for name in names:
        if config.get(name) is not None:
            return config[name]
    if default is None:
        raise KeyError(names[0])
    return default


def _workload(path: Path, config: dict[str, Any]) -> Workload:
    kind = str(config.get("model_type", ""))
    hidden = int(_first(config, "hidden_size", "n_embd", "d_model"))
    layers = int(_first(config, "num_hidden_layers", "n_layer", "n_layers"))
    heads = int(_first(config, "num_attention_heads", "n_head", "n_heads"))
    is_old = kind in ("gpt2", "bert", "gpt_neox", "bloom", "opt", "vit")
    activation = str(_first(config, "hidden_act", "activation_function", "hidden_activation", default="silu"))
    ffn = int(_first(config, "intermediate_size", "n_inner", "ffn_dim", default=4 * hidden))
    experts = int(_first(config, "num_local_experts", "n_routed_experts", "num_experts", default=0))
    expert_ffn = int(config.get("moe_intermediate_size") or ffn) if experts else 0
    moe_layers = _moe_layers(config, layers) if experts else 0
    shared = int(config.get("shared_expert_intermediate_size") or 0)
    shared += int(config.get("n_shared_experts") or 0) * expert_ffn
    if kind.startswith("llama4"):
        shared = expert_ffn
    kv_rank = int(config.get("kv_lora_rank") or 0)
    rope_dim = int(config.get("qk_rope_head_dim") or 0)
    head_dim = int(config.get("qk_nope_head_dim") or config.get("head_dim") or hidden // heads)
    return Workload(
        name=str(config.get("_name_or_path") or path.parent.name or path.name),
        num_layers=layers,
        hidden=hidden,
        num_heads=heads,
        num_kv_heads=int(_first(config, "num_key_value_heads", default=heads)),
        head_dim=head_dim,
        ffn=int(config.get("intermediate_size_mlp") or ffn) if moe_layers < layers else 0,
        is_gated=not is_old and activation in _GATED_ACTIVATIONS + (("gelu_pytorch_tanh",) if "gemma" in kind else ()),
        vocab=0 if kind == "vit" else int(_first(config, "vocab_size")),
        is_tied=bool(config.get("tie_word_embeddings", is_old or kind.startswith("gemma"))),
        has_bias=is_old,
        has_qkv_bias=bool(config.get("attention_bias", kind in ("qwen2", "qwen2_moe"))) and not is_old,
        has_qk_norm=kind in _QK_NORM,
        is_causal=kind not in ("bert", "vit"),
        max_positions=_positions(config, kind),
        num_token_types=int(config.get("type_vocab_size", 0)) if kind == "bert" else 0,
        num_experts=experts,
        experts_per_token=int(_first(config, "num_experts_per_tok", "experts_per_token", default=0)),
        expert_ffn=expert_ffn,
        shared_ffn=shared if experts else 0,
        num_moe_layers=moe_layers,
        q_rank=int(config.get("q_lora_rank") or 0),
        kv_rank=kv_rank,
        rope_dim=rope_dim if kv_rank else 0,
        value_dim=int(config.get("v_head_dim") or 0) if kv_rank else 0,
        patch_inputs=int(config.get("num_channels", 3)) * int(config["patch_size"]) ** 2 if kind == "vit" else 0,
        num_classes=len(config.get("id2label") or range(1000)) if kind == "vit" else 0,
        source=str(path),
    )


def _moe_layers(config: dict[str, Any], layers: int) -> int:
    """DeepSeek's first layers are dense; Llama 4's and Qwen's every `step`-th has experts; Qwen may list dense ones."""
    step = int(config.get("interleave_moe_layer_step") or config.get("decoder_sparse_step") or 1)
    listed = config.get("mlp_only_layers") or []
    first_dense = int(config.get("first_k_dense_replace") or 0)
    return sum((layer + 1) % step == 0 and layer not in listed and layer >= first_dense for layer in range(layers))


def _positions(config: dict[str, Any], kind: str) -> int:
    """Rows of a learned position table: a ViT's has one for each patch and one for the class token."""
    if kind == "vit":
        return (int(config["image_size"]) // int(config["patch_size"])) ** 2 + 1
    if kind in ("gpt2", "bert"):
        return int(_first(config, "n_positions", "max_position_embeddings", default=0))
    return 0
