"""Parameters as transformers counts them: a model is built from its config on the meta device, without memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

from flatout.plan.models.supported import RENAMED

CONFIGS = Path(__file__).parents[1] / "data" / "models" / "configs.json"
LAYERS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers"),
    *("decoder_layers", "depth", "num_global_layers"),
)
FEW, FEW_OF_TOWER = 10, 2


def configs() -> dict[str, dict[str, Any]]:
    """Return configs as their authors publish them, and for types without one, the type's defaults."""
    return json.loads(CONFIGS.read_text())


def shrunk(config: dict[str, Any], few: int = FEW) -> dict[str, Any]:
    """Return the config with at most `few` layers; its lists with one item per layer become as short."""
    num_layers = next((config[name] for name in LAYERS if isinstance(config.get(name), int)), 0)
    smaller = {}
    for name, value in config.items():
        if name in ("text_config", "vision_config"):
            smaller[name] = shrunk(value, few if name == "text_config" else FEW_OF_TOWER)
        elif name in LAYERS and isinstance(value, int):
            smaller[name] = min(value, few)
        elif (isinstance(value, list) and num_layers and len(value) == num_layers) or name == "hybrid_override_pattern":
            smaller[name] = value[:few]
        elif name == "hybrid_layer_ids":
            smaller[name] = [layer for layer in value if layer < few]
        elif name == "attention_types":
            smaller[name] = [[kinds, few // len(kinds)] for kinds, _ in value]
        else:
            smaller[name] = value
    return smaller


def parameters_in_transformers(config: dict[str, Any]) -> int:
    """Return the parameters of the class that `architectures` names, or else of the causal language model."""
    import torch
    import transformers
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    values = {name: value for name, value in config.items() if name != "model_type"}
    parsed = CONFIG_MAPPING[RENAMED.get(config["model_type"], config["model_type"])](**values)
    named = (config.get("architectures") or [""])[0]
    model_class = getattr(transformers, named, None) or _usual_class(modeling_auto, type(parsed))
    with torch.device("meta"), _without_initial_values(torch.nn.init):
        model = model_class(parsed)
    model.tie_weights()
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def _without_initial_values(init: ModuleType) -> Iterator[None]:
    """Draw no initial values: on the meta device that takes as long as all else, and they are not counted."""
    names = [name for name in vars(init) if name.endswith("_") and not name.startswith("_")]
    with patch.multiple(init, **dict.fromkeys(names, lambda tensor, *_, **__: tensor)):
        yield


def _usual_class(modeling_auto: Any, config_class: type) -> Any:
    mappings = (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
        modeling_auto.MODEL_MAPPING,
    )
    return next(mapping[config_class] for mapping in mappings if config_class in mapping)
