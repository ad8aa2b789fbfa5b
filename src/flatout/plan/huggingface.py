"""Read a model's shape from a Hugging Face `config.json`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.records.plan import Workload

# Architectures whose config.json is incomplete: the rest is in their code.
_WITH_BIAS = ("gpt2", "bert", "gpt_neox", "bloom", "opt", "vit")
_WITH_QKV_BIAS = ("qwen2", "qwen2_moe")
_WITH_QK_NORM = ("qwen3", "qwen3_moe")
_WITH_POSITION_TABLE = ("gpt2", "bert")
_BIDIRECTIONAL = ("bert", "vit")
_GATED_ACTIVATIONS = ("silu", "swiglu", "swish", "geglu")
_GATED_IN_GEMMA = (*_GATED_ACTIVATIONS, "gelu_pytorch_tanh")
MOST = 1 << 40  # far beyond any number in a model's config; products of such numbers are still floats
_WHOLE = (*("hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head", "vocab_size"),)


def from_config(path: Path) -> Workload:
    """Return the shape in a `config.json`. Raise InputError if it is unreadable, or not a known decoder or encoder."""
    try:
        config = decode_json(read_bytes(path))
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"`{path}` is not valid JSON: {error}", hint="pass the config.json of a Hugging Face model"
        ) from error
    if not isinstance(config, dict):
        raise InputError(f"`{path}` must hold one JSON object, but holds a {type(config).__name__}")
    config = config.get("text_config") or config
    for name in _WHOLE:
        value = config.get(name, 1)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"`{name}` in `{path}` must be a whole number of at least 1, but is {value!r}")
    return from_dict(path, config)


def from_dict(path: Path, config: dict[str, Any]) -> Workload:
    """Return the shape in a parsed config; `path` is for messages. Raise InputError if a number is missing."""
    try:
        return _Config(path, config).workload()
    except KeyError as error:
        raise InputError(
            f"`{path}` must say `{error.args[0]}`, but has {_some_names(config)}",
            hint="a transformer's config.json has num_hidden_layers, hidden_size and num_attention_heads",
        ) from error
    except (TypeError, ValueError) as error:
        raise InputError(f"`{path}` has a value that must be a number but is not: {error}") from error


def _some_names(config: dict[str, Any]) -> str:
    names = sorted(config)
    if not names:
        return "nothing in it"
    return f"only: {', '.join(names[:8])}{', ...' if len(names) > 8 else ''}"


class _Experts(NamedTuple):
    """The experts of a mixture-of-experts model; all numbers are 0 for a dense model."""

    num: int
    ffn: int  # width of one expert
    shared_ffn: int  # total width of the experts that every token uses
    num_layers: int  # layers with experts


class _Config:
    """The values of a config, under the names that architectures use. Raises KeyError for a missing required value."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        self._path, self._config = path, config
        self._kind = str(config.get("model_type", ""))
        self._has_bias = self._kind in _WITH_BIAS
        self._hidden = self._needed("hidden_size", "n_embd", "d_model")
        self._layers = self._needed("num_hidden_layers", "n_layer", "n_layers")
        self._heads = self._needed("num_attention_heads", "n_head", "n_heads")

    def _value(self, *names: str) -> Any:
        """Return the first value under one of the names; None if there is none."""
        values = (self._config.get(name) for name in names)
        return next((value for value in values if value is not None), None)

    def _needed(self, *names: str) -> int:
        value = self._value(*names)
        if value is None:
            raise KeyError(names[0])
        return self._counted(names, value)

    def _number(self, *names: str, default: int = 0) -> int:
        value = self._value(*names)
        return default if value is None else self._counted(names, value)

    def _counted(self, names: tuple[str, ...], value: Any) -> int:
        """Return a number of layers, elements and the like. Raise InputError for one that no model has."""
        if isinstance(value, int | float) and not abs(value) <= MOST:
            name = next(name for name in names if self._config.get(name) is not None)
            raise InputError(f"`{name}` in `{self._path}` must be at most {MOST:,}, but is {value!r:.24}")
        return int(value)

    def workload(self) -> Workload:
        config, kind = self._config, self._kind
        is_vit = kind == "vit"
        ffn = self._number("intermediate_size", "n_inner", "ffn_dim", default=4 * self._hidden)
        experts = self._experts(ffn)
        has_dense_layers = experts.num_layers < self._layers
        kv_rank = self._number("kv_lora_rank")
        has_qkv_bias = bool(config.get("attention_bias", kind in _WITH_QKV_BIAS))
        return Workload(
            name=str(config.get("_name_or_path") or self._path.parent.name or self._path.name),
            num_layers=self._layers,
            hidden=self._hidden,
            num_heads=self._heads,
            num_kv_heads=self._number("num_key_value_heads", default=self._heads),
            head_dim=self._head_dim(),
            ffn=(self._number("intermediate_size_mlp") or ffn) if has_dense_layers else 0,
            is_gated=self._is_gated(),
            vocab=0 if is_vit else self._needed("vocab_size"),
            is_tied=bool(config.get("tie_word_embeddings", self._has_bias or kind.startswith("gemma"))),
            has_bias=self._has_bias,
            has_qkv_bias=has_qkv_bias and not self._has_bias,
            has_qk_norm=kind in _WITH_QK_NORM,
            is_causal=kind not in _BIDIRECTIONAL,
            max_positions=self._num_positions(),
            num_token_types=self._number("type_vocab_size") if kind == "bert" else 0,
            num_experts=experts.num,
            experts_per_token=self._number("num_experts_per_tok", "experts_per_token"),
            expert_ffn=experts.ffn,
            shared_ffn=experts.shared_ffn,
            num_moe_layers=experts.num_layers,
            q_rank=self._number("q_lora_rank"),
            kv_rank=kv_rank,
            rope_dim=self._number("qk_rope_head_dim") if kv_rank else 0,
            value_dim=self._number("v_head_dim") if kv_rank else 0,
            patch_inputs=self._patch_inputs() if is_vit else 0,
            num_classes=len(config.get("id2label") or range(1000)) if is_vit else 0,
            source=str(self._path),
        )

    def _head_dim(self) -> int:
        given = self._number("qk_nope_head_dim") or self._number("head_dim")
        return given or self._hidden // self._heads

    def _is_gated(self) -> bool:
        activation = self._value("hidden_act", "activation_function", "hidden_activation")
        gated = _GATED_IN_GEMMA if "gemma" in self._kind else _GATED_ACTIVATIONS
        return not self._has_bias and (activation is None or str(activation) in gated)

    def _experts(self, ffn: int) -> _Experts:
        num = self._number("num_local_experts", "n_routed_experts", "num_experts")
        if not num:
            return _Experts(num=0, ffn=0, shared_ffn=0, num_layers=0)
        expert_ffn = self._number("moe_intermediate_size") or ffn
        return _Experts(
            num=num, ffn=expert_ffn, shared_ffn=self._shared_ffn(expert_ffn), num_layers=self._num_moe_layers()
        )

    def _shared_ffn(self, expert_ffn: int) -> int:
        """Return the total width of the experts that every token uses."""
        if self._kind.startswith("llama4"):
            return expert_ffn
        return self._number("shared_expert_intermediate_size") + self._number("n_shared_experts") * expert_ffn

    def _num_moe_layers(self) -> int:
        """Return the number of layers with experts.

        In DeepSeek the first layers are dense. In Llama 4 and Qwen, every `step`-th layer has experts. Qwen's config
        can list dense layers.
        """
        step = self._number("interleave_moe_layer_step") or self._number("decoder_sparse_step") or 1
        num_first_dense = self._number("first_k_dense_replace")
        listed_dense = self._config.get("mlp_only_layers") or []
        every_step = [layer for layer in range(self._layers) if (layer + 1) % step == 0]
        return sum(layer >= num_first_dense and layer not in listed_dense for layer in every_step)

    def _num_positions(self) -> int:
        """Return the rows of the learned position table; for a ViT, one per patch and one for the class token."""
        if self._kind == "vit":
            patches_per_side = self._needed("image_size") // self._needed("patch_size")
            return patches_per_side**2 + 1
        if self._kind in _WITH_POSITION_TABLE:
            return self._number("n_positions", "max_position_embeddings")
        return 0

    def _patch_inputs(self) -> int:
        """Return the number of values in one patch."""
        return self._number("num_channels", default=3) * self._needed("patch_size") ** 2
