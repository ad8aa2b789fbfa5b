"""The counts of every supported model type, against transformers on the meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.plan.model_counts import configs, parameters_in_transformers, shrunk

from flatout.errors import InputError
from flatout.plan.counts import num_active_parameters, num_parameters
from flatout.plan.huggingface import from_values
from flatout.plan.models.supported import ONLY_ON_THE_HUB, RENAMED, SUPPORTED

COUNTED = json.loads((Path(__file__).parents[2] / "benchmarks" / "results" / "model_counts.json").read_text())["models"]
# The authors publish these rounded: 314 B and 479 B.
ROUNDED = {"grok-1": (314e9, 0.006), "arctic": (479e9, 0.001)}


def counted(config: dict[str, Any]) -> int:
    return num_parameters(from_values(Path("config.json"), config))


def test_every_type_has_a_config_and_a_count() -> None:
    types = {RENAMED.get(config["model_type"], config["model_type"]) for config in configs().values()}
    assert types == set(SUPPORTED)
    assert set(COUNTED) == set(configs())


@pytest.mark.parametrize("name", [name for name in configs() if name not in ROUNDED])
def test_a_published_model_has_the_parameters_that_transformers_counts(name: str) -> None:
    assert counted(configs()[name]) == COUNTED[name]["parameters"]


@pytest.mark.parametrize("name", ROUNDED)
def test_models_without_a_count_have_the_number_of_their_authors(name: str) -> None:
    published, within = ROUNDED[name]
    assert counted(configs()[name]) == pytest.approx(published, rel=within)


@pytest.mark.filterwarnings("ignore")
def test_every_type_counts_as_the_installed_transformers_does() -> None:
    """With few layers of each kind, so that all types take seconds; tests above hold the full sizes to stored counts."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    wrong = {}
    for name, config in configs().items():
        if config["model_type"] in ONLY_ON_THE_HUB:
            continue
        small = shrunk(config)
        difference = counted(small) - parameters_in_transformers(small)
        if difference:
            wrong[name] = difference
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("qwen3-235b-a22b", 22), ("glm-4.5-air", 12), ("kimi-k2", 32.6), ("qwen1.5-moe-a2.7b", 2.7), ("dbrx", 36),
        ("gpt-oss-20b", 3.6 + 0.579), ("deepseek-v2-lite", 2.4 + 0.21), ("jamba-1.5-mini", 12), ("arctic", 17),
        ("hunyuan-a13b", 13), ("olmoe-1b-7b", 1.3), ("minimax-text-01-hf", 45.9 + 1.23), ("phi-3.5-moe", 6.6),
    ],
)  # fmt: skip
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    """Authors who leave the embedding out of their number: GPT-OSS, DeepSeek, MiniMax."""
    workload = from_values(Path("config.json"), configs()[name])
    assert num_active_parameters(workload) / 1e9 == pytest.approx(billions, rel=0.04)


@pytest.mark.parametrize("model_type", ["clip", "chatglm", "deepseek_v4", "wav2vec2", "qwen2_vl_text"])
def test_an_unknown_type_is_refused_by_name_with_a_way_out(model_type: str) -> None:
    with pytest.raises(InputError, match=f"`{model_type}` cannot be planned") as caught:
        from_values(Path("config.json"), {"model_type": model_type, "hidden_size": 64, "num_hidden_layers": 2})
    assert "layers=N,hidden=N" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("llama-3.1-8b", "num_experts", 8),
        ("llama-3.1-8b", "num_local_experts", 8),
        ("llama-3.1-8b", "sliding_window", 4096),
        ("llama-3.1-8b", "layer_types", ["full_attention"] * 32),
        ("qwen3-8b", "kv_lora_rank", 512),
        ("mixtral-8x7b", "mamba_d_state", 16),
        ("mixtral-8x7b", "n_shared_experts", 1),
        ("gpt2-xl", "n_routed_experts", 4),
    ],
)
def test_a_key_that_adds_what_a_type_does_not_have_is_refused(name: str, key: str, value: Any) -> None:
    config = configs()[name]
    with pytest.raises(InputError, match=f"`{key}` .* may change its size"):
        counted(config | {key: value})
    assert counted(config | {key: None}) == counted(config)


def test_a_key_that_changes_nothing_is_let_be() -> None:
    config = configs()["llama-3.1-8b"]
    assert counted(config | {"use_cache": True, "quantum_dots": 7, "torch_dtype": "float16"}) == counted(config)


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("gemma-3-1b", {"layer_types": ["full_attention"] * 3}, "one word for each of the 26 layers, but has 3"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "at most all experts, but there are 9 of 8"),
        ("mixtral-8x7b", {"num_experts_per_tok": 0}, "at least 1 and at most all experts, but there are 0 of 8"),
        ("llama-3.1-8b", {"num_key_value_heads": 5}, "must divide the heads, but there are 5 of 32"),
        ("hunyuan-a13b", {"moe_topk": [8, 4] * 16}, "`moe_topk` .* same in all layers"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M-X"}, "has `X`"),
        ("mpt-7b", {"attn_config": {"attn_type": "multiquery_attention"}}, "has `multiquery_attention`"),
    ],
)
def test_a_config_that_contradicts_itself_is_one_line(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        counted(configs()[name] | changed)
    assert "\n" not in str(caught.value)


def test_missing_keys_have_the_defaults_of_their_type() -> None:
    """Gemma ties its tables and has heads of 256 without saying so; a Mistral has a window of 4096."""
    gemma = from_values(Path("config.json"), {"model_type": "gemma", "hidden_size": 3072})
    assert gemma.is_tied and gemma.head_dim == 256
    mistral = from_values(Path("config.json"), {"model_type": "mistral"})
    assert {kind.window for kind in mistral.layers} == {4096}
    without_window = from_values(Path("config.json"), {"model_type": "mistral", "sliding_window": None})
    assert {kind.window for kind in without_window.layers} == {0}


def test_a_tower_of_unknown_type_is_refused() -> None:
    config = configs()["llava-1.5-7b"]
    odd = config | {"vision_config": {"model_type": "swin"}}
    with pytest.raises(InputError, match="vision tower of type `swin` cannot be planned"):
        counted(odd)
