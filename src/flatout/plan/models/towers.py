"""Count the vision towers of multimodal models: a transformer over the patches of one image, and its embeddings.

A tower's multiply-adds are those of one image of the size that the config names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flatout.plan.models.config import ModelConfig
from flatout.records.layers import Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layers:
    """The layers of a vision transformer, all alike."""

    hidden: int
    width: int
    num: int
    qkv_bias: bool = True
    out_bias: bool = True
    ffn_bias: bool = True
    is_gated: bool = False
    norm: int = 2  # parameters of a norm per element: with or without a bias
    more: int = 0  # other parameters of one layer

    @property
    def weights(self) -> int:
        """Return the weights of one layer's matrices."""
        return 4 * self.hidden**2 + (3 if self.is_gated else 2) * self.hidden * self.width

    def parameters(self) -> int:
        """Return the parameters of all layers."""
        h, width = self.hidden, self.width
        biases = 3 * h * self.qkv_bias + h * self.out_bias
        biases += ((2 if self.is_gated else 1) * width + h) * self.ffn_bias
        return self.num * (self.weights + biases + 2 * self.norm * h + self.more)

    def multiply_adds(self, num_patches: int) -> int:
        """Return the forward's multiply-adds for one image."""
        return self.num * (self.weights * num_patches + 2 * num_patches**2 * self.hidden)


def read_tower(config: ModelConfig) -> Tower:
    """Return the vision tower. Raise KeyError if no reader knows its type."""
    return _TOWERS[config.model_type](config)


def knows_tower(model_type: str) -> bool:
    """Whether a reader knows the type of a tower."""
    return model_type in _TOWERS


def vision_width(config: ModelConfig) -> int:
    """Return the width of what the tower puts out for one patch."""
    if config.model_type == "qwen2_vl_vision":
        return config.size("embed_dim")
    return config.size("hidden_size")


def square(config: ModelConfig, name: str) -> int:
    """Return a side's length, which some configs give for both sides."""
    value = config.value(name)
    if isinstance(value, list | tuple) and value:
        return int(value[0])
    return config.size(name)


def _num_patches(config: ModelConfig) -> int:
    return (square(config, "image_size") // square(config, "patch_size")) ** 2


def _patch_weights(config: ModelConfig, hidden: int, *, frames: int = 1) -> int:
    channels = config.whole("num_channels", "in_channels", "in_chans", default=3)
    return channels * frames * square(config, "patch_size") ** 2 * hidden


def _layers(config: ModelConfig, **traits: object) -> _Layers:
    return _Layers(
        hidden=config.size("hidden_size"),
        width=config.size("intermediate_size"),
        num=config.size("num_hidden_layers", "depth"),
        **traits,  # type: ignore[arg-type]
    )


def _vision(parameters: int, layers: _Layers, num_patches: int, patch_weights: int) -> Tower:
    return Tower(
        name="vision",
        parameters=parameters,
        multiply_adds=layers.multiply_adds(num_patches) + num_patches * patch_weights,
        kept_elements=layers.num * num_patches * layers.hidden,
    )


def _clip(config: ModelConfig) -> Tower:
    layers, patches = _layers(config), _num_patches(config)
    h, patch_weights = layers.hidden, _patch_weights(config, layers.hidden)
    embedding = patch_weights + h + (patches + 1) * h  # patches without a bias, a class token, positions
    return _vision(layers.parameters() + embedding + 4 * h, layers, patches + 1, patch_weights)


def _siglip(config: ModelConfig) -> Tower:
    layers, patches = _layers(config), _num_patches(config)
    h, patch_weights = layers.hidden, _patch_weights(config, layers.hidden)
    parameters = layers.parameters() + patch_weights + h + patches * h + 2 * h
    if config.is_on("vision_use_head"):
        network = 2 * h * layers.width + layers.width + h
        parameters += h + 4 * h**2 + 4 * h + 2 * h + network  # pooling: a probe, attention, a norm, a network
    return _vision(parameters, layers, patches, patch_weights)


def _pixtral(config: ModelConfig) -> Tower:
    layers = _layers(config, qkv_bias=False, out_bias=False, ffn_bias=False, is_gated=True, norm=1)
    patches, patch_weights = _num_patches(config), _patch_weights(config, layers.hidden)
    return _vision(layers.parameters() + patch_weights + layers.hidden, layers, patches, patch_weights)


# Qwen's towers take images of any size; this is the number of patches of one of 1024 x 1024 pixels.
_QWEN_SIDE = 1024


def _qwen_patches(config: ModelConfig) -> int:
    return (_QWEN_SIDE // config.size("patch_size")) ** 2


def _qwen_merger(config: ModelConfig, hidden: int, out: int, *, norm: int) -> int:
    """Return the parameters of the network that merges neighbouring patches."""
    merged = hidden * config.size("spatial_merge_size") ** 2
    return norm + merged**2 + merged + merged * out + out


def _qwen2(config: ModelConfig) -> Tower:
    h = config.size("embed_dim")
    layers = _Layers(hidden=h, width=int(h * config.value("mlp_ratio")), num=config.size("depth"))
    patch_weights = _patch_weights(config, h, frames=config.size("temporal_patch_size"))
    merger = _qwen_merger(config, h, config.size("hidden_size"), norm=2 * h)
    return _vision(layers.parameters() + patch_weights + merger, layers, _qwen_patches(config), patch_weights)


def _qwen2_5(config: ModelConfig) -> Tower:
    layers = _layers(config, is_gated=True, norm=1)
    h = layers.hidden
    patch_weights = _patch_weights(config, h, frames=config.size("temporal_patch_size"))
    merger = _qwen_merger(config, h, config.size("out_hidden_size"), norm=h)
    return _vision(layers.parameters() + patch_weights + merger, layers, _qwen_patches(config), patch_weights)


def _qwen3(config: ModelConfig) -> Tower:
    layers = _layers(config)
    h, out = layers.hidden, config.size("out_hidden_size")
    patch_weights = _patch_weights(config, h, frames=config.size("temporal_patch_size"))
    merged = h * config.size("spatial_merge_size") ** 2
    parameters = layers.parameters() + patch_weights + h + config.size("num_position_embeddings") * h
    parameters += _qwen_merger(config, h, out, norm=2 * h)
    num_deep = len(config.value("deepstack_visual_indexes") or [])
    parameters += num_deep * _qwen_merger(config, h, out, norm=2 * merged)
    return _vision(parameters, layers, _qwen_patches(config), patch_weights)


def _llama4(config: ModelConfig) -> Tower:
    layers, patches = _layers(config), _num_patches(config)
    h, patch_weights = layers.hidden, _patch_weights(config, layers.hidden)
    adapter = config.size("intermediate_size") * config.size("projector_input_dim")
    adapter += config.size("projector_output_dim") ** 2
    embedding = patch_weights + h + (patches + 1) * h
    return _vision(layers.parameters() + embedding + 4 * h + adapter, layers, patches + 1, patch_weights)


def _mllama(config: ModelConfig) -> Tower:
    h, width = config.size("hidden_size"), config.size("intermediate_size")
    num_local, num_global = config.size("num_hidden_layers"), config.size("num_global_layers")
    local = _Layers(hidden=h, width=width, num=num_local, qkv_bias=False, out_bias=False)
    gated = _Layers(hidden=h, width=width, num=num_global, qkv_bias=False, out_bias=False, more=2)
    patches, patch_weights = _num_patches(config) + 1, _patch_weights(config, h)
    tiles = config.size("max_num_tiles")
    ratios = len(config.value("supported_aspect_ratios") or range(8)) + 1
    positions = patches * h + 1 + ratios * tiles * patches * h
    tile_embeddings = 2 * (ratios * tiles * h + 1)
    parameters = local.parameters() + gated.parameters() + patch_weights + h + 4 * h + positions + tile_embeddings
    return Tower(
        name="vision",
        parameters=parameters,
        multiply_adds=local.multiply_adds(patches * tiles) + gated.multiply_adds(patches * tiles),
        kept_elements=(num_local + num_global) * patches * tiles * h,
    )


def _internvl(config: ModelConfig) -> Tower:
    h = config.size("hidden_size")
    norm = 1 if config.value("norm_type") == "rms_norm" else 2
    qk_norm = 2 * h if config.is_on("use_qk_norm") else 0
    layers = _layers(config, qkv_bias=config.is_on("attention_bias"), norm=norm, more=qk_norm + 2 * h)
    patches, patch_weights = _num_patches(config), _patch_weights(config, h)
    embedding = patch_weights + h + h  # with its bias, and a class token
    if config.is_on("use_absolute_position_embeddings"):
        embedding += (patches + 1) * h
    if config.is_on("use_mask_token"):
        embedding += h
    final_norm = 0 if config.is_on("use_mean_pooling") else 2 * h
    return _vision(layers.parameters() + embedding + final_norm, layers, patches + 1, patch_weights)


def _idefics(config: ModelConfig) -> Tower:
    layers, patches = _layers(config), _num_patches(config)
    h, patch_weights = layers.hidden, _patch_weights(config, layers.hidden)
    parameters = layers.parameters() + patch_weights + h + patches * h + 2 * h
    return _vision(parameters, layers, patches, patch_weights)


_TOWERS: dict[str, Callable[[ModelConfig], Tower]] = {
    "clip_vision_model": _clip,
    "siglip_vision_model": _siglip,
    "pixtral": _pixtral,
    "qwen2_vl_vision": _qwen2,
    "qwen2_5_vl_vision": _qwen2_5,
    **dict.fromkeys(
        ("qwen3_vl_vision", "qwen3_vl_moe_vision", "qwen3_5_vision", "qwen3_5_moe_vision"),
        _qwen3,
    ),
    "llama4_vision_model": _llama4,
    "mllama_vision_model": _mllama,
    "internvl_vision": _internvl,
    **dict.fromkeys(("idefics2_vision", "idefics3_vision", "smolvlm_vision"), _idefics),
}
TOWER_TYPES = tuple(_TOWERS)
