"""Read models that see: a text model, a vision tower, and what connects the tower to the text model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from flatout.errors import InputError
from flatout.plan.models.config import ModelConfig
from flatout.plan.models.towers import knows_tower, read_tower, vision_width
from flatout.records.plan import Workload

Readers = dict[str, Callable[[ModelConfig], Workload]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Multimodal:
    """The parts of a multimodal type: the types that its configs have by default, and the parameters between them."""

    text: str
    vision: str
    connector: Callable[[ModelConfig, ModelConfig, ModelConfig], int]  # the config, that of the tower, that of the text
    is_flat: bool = False  # old configs have the text model's keys at the top
    vision_is_fixed: bool = False  # the tower's type is always this, whatever the config says
    # Whose `tie_word_embeddings` transformers follows: the whole config's (if it has none, the text model's), the text
    # model's, either's, or none: `whole`, `text`, `either`, `none`.
    ties: str = "whole"


def read_multimodal(config: ModelConfig, parts: Multimodal, readers: Readers) -> Workload:
    """Return the text model's layers, with the tower and its connector. Raise InputError for parts of unknown types."""
    for name in ("vision_config",) if parts.is_flat else ("text_config", "vision_config"):
        if not isinstance(config.values.get(name), dict):
            raise KeyError(name)
    text = _text_config(config, parts)
    vision = config.part("vision_config", parts.vision)
    if parts.vision_is_fixed or vision.model_type == config.model_type:
        vision = ModelConfig(config.path, vision.values, parts.vision)
    if text.model_type not in readers:
        raise _unknown(config, "text model", text.model_type)
    if not knows_tower(vision.model_type):
        raise _unknown(config, "vision tower", vision.model_type)
    workload = readers[text.model_type](text)
    if text.values is config.values:
        config.shares_keys_of(text)
        text.shares_keys_of(config)
    text.refuse_unknown_structure()
    tower = read_tower(vision)
    connector = parts.connector(config, vision, text)
    return msgspec.structs.replace(
        workload,
        is_tied=_is_tied(config, parts, of_text=workload.is_tied),
        towers=(*workload.towers, msgspec.structs.replace(tower, parameters=tower.parameters + connector)),
    )


def _is_tied(config: ModelConfig, parts: Multimodal, *, of_text: bool) -> bool:
    """Whether the logits use the embedding's table."""
    whole = config.value("tie_word_embeddings")
    if parts.ties == "whole" and whole is not None:
        return bool(whole)
    if parts.ties == "none":
        return False
    return of_text or (parts.ties == "either" and bool(whole))


def _text_config(config: ModelConfig, parts: Multimodal) -> ModelConfig:
    if parts.is_flat and not isinstance(config.values.get("text_config"), dict):
        return ModelConfig(config.path, config.values, parts.text)
    return config.part("text_config", parts.text)


def _unknown(config: ModelConfig, part: str, model_type: str) -> InputError:
    return InputError(
        f"models of type `{config.model_type}` with a {part} of type `{model_type:.60}` cannot be planned: its layers "
        f"are unknown (`{config.path}`)",
        hint="docs/reference/models.md lists all types; or give the widths: --model layers=N,hidden=N,heads=N,...",
    )


def _two_linears(inputs: int, inner: int, outputs: int, *, bias: bool = True) -> int:
    return inputs * inner + inner * outputs + (inner + outputs if bias else 0)


def _llava(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    hidden = text.size("hidden_size")
    inputs = vision_width(vision) * _num_vision_layers(config)
    return _two_linears(inputs, hidden, hidden, bias=config.is_on("multimodal_projector_bias"))


def _num_vision_layers(config: ModelConfig) -> int:
    """Return from how many of the tower's layers the connector reads."""
    layers = config.value("vision_feature_layer")
    return len(layers) if isinstance(layers, list | tuple) else 1


def _llava_with_newline(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    return _llava(config, vision, text) + text.size("hidden_size")


def _vip_llava(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    inputs = vision_width(vision) * len(config.value("vision_feature_layers") or [-2])
    hidden = text.size("hidden_size")
    return 2 * inputs + _two_linears(inputs, hidden, hidden)


def _pixtral(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    width = vision_width(vision)
    merger = width * config.size("spatial_merge_size") ** 2 * width
    return _llava(config, vision, text) + width + merger


def _none(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    return 0


def _gemma3(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    return vision_width(vision) * text.size("hidden_size") + vision_width(vision)


def _paligemma(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    outputs = vision.whole("projection_dim", default=0) or config.whole("projection_dim", default=2048)
    return vision_width(vision) * outputs + outputs


def _llama4(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    return vision.size("vision_output_dim") * text.size("hidden_size")


def _mllama(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    hidden = text.size("hidden_size")
    return vision.size("vision_output_dim") * hidden + hidden


def _internvl(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    merged = vision_width(vision) * int(1 / config.value("downsample_ratio")) ** 2
    hidden = text.size("hidden_size")
    return 2 * merged + _two_linears(merged, hidden, hidden)


def _idefics3(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    return vision_width(vision) * config.size("scale_factor") ** 2 * text.size("hidden_size")


def _idefics2(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    """Return a gated network and a resampler of a few layers of attention."""
    hidden = text.size("hidden_size")
    network = 2 * vision_width(vision) * text.size("intermediate_size") + text.size("intermediate_size") * hidden
    perceiver = config.part("perceiver_config", "idefics2_perceiver")
    perceiver = ModelConfig(config.path, perceiver.values, "idefics2_perceiver")
    dim, heads = perceiver.size("resampler_head_dim"), perceiver.size("resampler_n_heads")
    kv_heads = perceiver.size("num_key_value_heads")
    attention = 2 * hidden * heads * dim + 2 * hidden * kv_heads * dim
    layer = attention + 3 * hidden + 3 * hidden * 4 * hidden
    latents = perceiver.size("resampler_n_latents") * hidden
    return network + perceiver.size("resampler_depth") * layer + latents + hidden


def _aya(config: ModelConfig, vision: ModelConfig, text: ModelConfig) -> int:
    merged = vision_width(vision) * config.size("downsample_factor") ** 2
    hidden = text.size("hidden_size")
    inner = config.whole("alignment_intermediate_size", default=hidden)
    return 2 * merged + merged * inner + inner + inner // 2 * hidden + hidden


MULTIMODAL = {
    "llava": Multimodal(text="llama", vision="clip_vision_model", connector=_llava, ties="either"),
    "vipllava": Multimodal(text="llama", vision="clip_vision_model", connector=_vip_llava),
    "llava_next": Multimodal(text="llama", vision="clip_vision_model", connector=_llava_with_newline),
    "llava_onevision": Multimodal(
        text="qwen2", vision="siglip_vision_model", connector=_llava_with_newline, ties="either"
    ),
    "mistral3": Multimodal(text="mistral", vision="pixtral", connector=_pixtral),
    "qwen2_vl": Multimodal(text="qwen2_vl_text", vision="qwen2_vl_vision", connector=_none, is_flat=True),
    "qwen2_5_vl": Multimodal(text="qwen2_5_vl_text", vision="qwen2_5_vl_vision", connector=_none, is_flat=True),
    "qwen3_vl": Multimodal(text="qwen3_vl_text", vision="qwen3_vl_vision", connector=_none),
    "qwen3_vl_moe": Multimodal(text="qwen3_vl_moe_text", vision="qwen3_vl_moe_vision", connector=_none),
    "qwen3_5": Multimodal(text="qwen3_5_text", vision="qwen3_5_vision", connector=_none),
    "qwen3_5_moe": Multimodal(text="qwen3_5_moe_text", vision="qwen3_5_moe_vision", connector=_none),
    "gemma3": Multimodal(text="gemma3_text", vision="siglip_vision_model", connector=_gemma3),
    "paligemma": Multimodal(text="gemma", vision="siglip_vision_model", connector=_paligemma),
    "llama4": Multimodal(text="llama4_text", vision="llama4_vision_model", connector=_llama4, ties="text"),
    "mllama": Multimodal(text="mllama_text_model", vision="mllama_vision_model", connector=_mllama, ties="none"),
    "internvl": Multimodal(text="qwen2", vision="internvl_vision", connector=_internvl),
    "idefics2": Multimodal(text="mistral", vision="idefics2_vision", connector=_idefics2, vision_is_fixed=True),
    "idefics3": Multimodal(text="llama", vision="idefics3_vision", connector=_idefics3, vision_is_fixed=True),
    "smolvlm": Multimodal(text="llama", vision="smolvlm_vision", connector=_idefics3, vision_is_fixed=True),
    "aya_vision": Multimodal(text="cohere2", vision="siglip_vision_model", connector=_aya),
}
