"""Count changed configs of all supported model types, and compare with transformers on the meta device.

    python benchmarks/model_changes.py [--seed N] [--out FILE]

Each type's published config gets few layers and other values at random: tables tied or not, biases, widths, numbers of
layers, heads, experts and windows. What transformers cannot build is counted, not compared. A refusal is not an error
of the count, and is printed.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import warnings
from pathlib import Path
from typing import Any

import transformers
from tests.plan.model_counts import configs, parameters_in_transformers, shrunk

from flatout.errors import FlatoutError
from flatout.plan.counts import num_parameters
from flatout.plan.huggingface import from_values
from flatout.plan.models.supported import ONLY_ON_THE_HUB

FLAGS = (
    *("tie_word_embeddings", "attention_bias", "mlp_bias", "use_bias", "bias", "use_qk_norm", "use_sliding_window"),
    *("parallel_attn", "new_decoder_architecture", "multi_query", "use_qkv_bias", "qkv_bias", "lm_head_bias"),
)
WIDTHS = (
    *("vocab_size", "intermediate_size", "moe_intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size"),
    "shared_expert_intermediate_size",
)
HALVED, DOUBLED = ("num_key_value_heads",), ("num_experts", "n_routed_experts", "num_local_experts", "sliding_window")
STEPPED = ("first_k_dense_replace", "n_shared_experts", "decoder_sparse_step", "moe_layer_start_index")
PARTS = ("text_config", "vision_config")
FEW, SHARE_CHANGED = 6, 0.5


def changed(config: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], list[str]]:
    """Return the config with some values changed, and the names of these."""
    result, names = copy.deepcopy(config), []
    for name, value in config.items():
        if name in PARTS and isinstance(value, dict):
            result[name], of_part = changed(value, draw)
            names += [f"{name}.{key}" for key in of_part]
        elif draw.random() < SHARE_CHANGED:
            other = another_value(name, value, draw)
            if other is not None:
                result[name] = other
                names.append(name)
    return result, names


def another_value(name: str, value: Any, draw: random.Random) -> Any:
    """Return another valid value of a key; None if it is left as it is."""
    if isinstance(value, bool):
        return not value if name in FLAGS else None
    if not isinstance(value, int) or value <= 0:
        return None
    if name in WIDTHS:
        return value + draw.choice([64, 128, 1024])
    if name in HALVED and value % 2 == 0:
        return value // 2
    if name in DOUBLED:
        return value * 2
    if name in STEPPED:
        return value + 1
    return None


def compared(name: str, config: dict[str, Any], names: list[str]) -> tuple[str, str]:
    """Return the outcome and its description."""
    try:
        truth = parameters_in_transformers(config)
    except Exception:  # noqa: BLE001 - a class may refuse values in any way
        return "not built", ""
    try:
        counted = num_parameters(from_values(Path("config.json"), config))
    except FlatoutError as error:
        return "refused", f"{name} {names}: {error}"
    return ("right", "") if counted == truth else ("wrong", f"{name} {names}: {counted:,} instead of {truth:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    draw = random.Random(arguments.seed)
    outcomes: dict[str, int] = {}
    texts = []
    for name, config in configs().items():
        different, names = changed(shrunk(config, FEW), draw)
        if config["model_type"] in ONLY_ON_THE_HUB or not names:
            continue
        outcome, text = compared(name, different, names)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        if text:
            texts.append(f"{outcome}: {text}")
            print(texts[-1], flush=True)
    print(outcomes)
    if arguments.out:
        result = {
            "seed": arguments.seed,
            "transformers": transformers.__version__,
            "outcomes": outcomes,
            "texts": texts,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
