"""Write `catalog/model_configs.json`: the keys and default values of each supported model's `config.json`.

    python benchmarks/write_model_configs.py

A `config.json` on the Hub leaves out what equals the default of its class in transformers, so a reader needs these
defaults. They are read from the installed transformers: its version is written beside them. Keys that cannot change a
model's size (dropout, token numbers, initialization) are left out.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from flatout.plan.models.supported import CONFIG_TYPES

FILE = Path(__file__).resolve().parents[1] / "src" / "flatout" / "catalog" / "model_configs.json"
WITHOUT_EFFECT = re.compile(
    r"dropout|drop$|_pdrop|token_id|token_index|initializer|_eps|epsilon|^rope|use_cache|^output_|_coef|label|pad_|"
    r"^dtype|return_dict|problem_type|chunk_size_feed|scaling|logits_soft|softcap|time_step_(?!rank)|jitter|summary_|"
    r"transformers_version|is_encoder_decoder|norm_topk|begin_suppress|suppress_tokens|forced_|mask_|apply_spec|"
    r"multiplier|_alpha_factor|_beta_factor|std$|rescale|quantization"
)


def main() -> None:
    """Write the file."""
    types = {name: _entry(name) for name in sorted(CONFIG_TYPES)}
    content = {"source": f"transformers {transformers.__version__}, Apache-2.0", "types": types}
    lines = json.dumps(content, indent=1)
    FILE.write_text(lines + "\n", encoding="utf-8")
    print(f"{len(types)} types in {FILE}")


def _of_all_configs() -> set[str]:
    return {field.name for field in dataclasses.fields(transformers.PreTrainedConfig)}


def _entry(name: str) -> dict[str, Any]:
    config = CONFIG_MAPPING[name]
    fields = [field for field in dataclasses.fields(config) if field.name not in _of_all_configs()]
    with_effect = [field for field in fields if not WITHOUT_EFFECT.search(field.name)]
    defaults = {
        field.name: field.default
        for field in with_effect
        if isinstance(field.default, int | float | str | list | tuple)
    }
    names = {new: old for new, old in (config.attribute_map or {}).items() if not WITHOUT_EFFECT.search(new)}
    return {"defaults": defaults, "optional": sorted({field.name for field in fields} - set(defaults)), "names": names}


if __name__ == "__main__":
    main()
