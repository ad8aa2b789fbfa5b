"""Count the parameters of published models with transformers, at full size, for the table of supported types.

    python benchmarks/model_counts.py

Reads `tests/data/models/configs.json`, builds each model on the meta device, and writes
`benchmarks/results/model_counts.json`: for each config its type and the number of parameters, or why there is none.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import transformers  # noqa: E402
from tests.plan.model_counts import configs, parameters_in_transformers  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "model_counts.json"
# Published sums of the tensors in checkpoints whose code transformers does not have.
PUBLISHED = {
    "internlm2-7b": (7_737_708_544, "internlm/internlm2-7b, safetensors' metadata on the Hub"),
    "baichuan2-7b": (7_505_973_248, "baichuan-inc/Baichuan2-7B-Base, safetensors' metadata on the Hub"),
    "deepseek-moe-16b": (16_375_728_128, "deepseek-ai/deepseek-moe-16b-base, safetensors' metadata on the Hub"),
}


def main() -> None:
    """Count, and write the result."""
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    counted = {name: _counted(name, config) for name, config in configs().items()}
    result = {"transformers": transformers.__version__, "models": counted}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    failed = [name for name, each in counted.items() if each["parameters"] is None]
    print(f"{len(counted)} models, without a count: {', '.join(failed)}")


def _counted(name: str, config: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {"model_type": config["model_type"], "parameters": None, "source": "transformers"}
    if name in PUBLISHED:
        parameters, source = PUBLISHED[name]
        return entry | {"parameters": parameters, "source": source}
    try:
        entry["parameters"] = parameters_in_transformers(config)
    except (AttributeError, KeyError, TypeError, ValueError, StopIteration) as error:
        entry["source"] = f"none: {type(error).__name__}"
    return entry


if __name__ == "__main__":
    main()
