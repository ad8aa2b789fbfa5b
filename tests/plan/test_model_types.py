"""The counts of every supported model type, against transformers on the meta device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.plan.model_counts import configs, parameters_in_transformers, shrunk

from flatout.errors import InputError
from flatout.plan.counts import mean_attended, num_active_parameters, num_parameters, training_flops_per_token
from flatout.plan.huggingface import from_values
from flatout.plan.inputs import workload_columns
from flatout.plan.model_names import workload
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
    """With few layers of each kind, so that all types take seconds; the complete sizes are compared as stored."""
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
        ("qwen3-235b-a22b", 22), ("glm-4.5-air", 12 + 1.24), ("kimi-k2", 32.6), ("qwen1.5-moe-a2.7b", 2.7),
        ("dbrx", 36), ("gpt-oss-20b", 3.6 + 0.579), ("deepseek-v2-lite", 2.4 + 0.21),
        ("jamba-1.5-mini", 12), ("arctic", 17),
        ("hunyuan-a13b", 13), ("olmoe-1b-7b", 1.3), ("minimax-text-01-hf", 45.9 + 1.23), ("phi-3.5-moe", 6.6),
    ],
)  # fmt: skip
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    """Authors who leave one table or both out of their number: GPT-OSS, DeepSeek, MiniMax, GLM."""
    workload = from_values(Path("config.json"), configs()[name])
    assert num_active_parameters(workload) / 1e9 == pytest.approx(billions, rel=0.04)


NEW_AND_UNKNOWN = (
    *("deepseek_v32", "deepseek_v4", "gemma4", "glm_moe_dsa", "hy_v3", "kimi_k25", "longcat_flash", "mimo_v2_flash"),
    *("minimax_m3_vl", "qwen4_exp"),
)


@pytest.mark.parametrize("model_type", ["clip", "chatglm", "wav2vec2", "qwen2_vl_text", *NEW_AND_UNKNOWN])
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


def test_more_heads_than_the_hidden_width_are_refused(tmp_path: Path) -> None:
    heads = {"num_attention_heads": 8192, "num_key_value_heads": 8192, "head_dim": None}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs()["llama-3.1-8b"] | heads))
    with pytest.raises(InputError, match="must have a width, but 8,192 heads share a hidden width of 4,096"):
        workload(str(path))


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


TINY = {
    "llama": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "vocab_size": 128},
    "mixtral": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
                "num_key_value_heads": 2, "vocab_size": 128, "num_local_experts": 8, "num_experts_per_tok": 2},
    "qwen2_moe": {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 2,
                  "shared_expert_intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2,
                  "vocab_size": 128, "num_experts": 8, "num_experts_per_tok": 3, "mlp_only_layers": [0]},
    "deepseek_v3": {"hidden_size": 64, "intermediate_size": 96, "moe_intermediate_size": 32, "num_hidden_layers": 3,
                    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 128, "n_routed_experts": 8,
                    "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1, "q_lora_rank": 24,
                    "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12, "n_group": 1,
                    "topk_group": 1},
    "falcon": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 128},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", TINY)
def test_operations_are_those_that_torch_counts(model_type: str) -> None:
    """A forward pass computes all scores, so the masked half is counted too; training has three times as many.

    torch does not count the product that rotary positions make of their angles, nor the weighting of experts.
    """
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import AutoConfig, AutoModelForCausalLM

    seq = 40
    config = AutoConfig.for_model(model_type, **TINY[model_type])
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", experts_implementation="eager")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.arange(seq)[None] % 128)
    workload = from_values(Path("config.json"), {"model_type": model_type, **TINY[model_type]})
    forward = training_flops_per_token(workload, seq, is_causal=False) / 3 * seq
    assert counter.get_total_flops() == pytest.approx(forward, rel=0.002)


def test_a_window_leaves_only_its_tokens() -> None:
    """Mistral 7B with 131,072 tokens: 4096 - 4096^2 / (2 * 131072) = 4032 attended tokens, where all are 65,536.

    Matrices: 32 layers of 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) weights, and 4096 * 32000 of the logits.
    """
    matrices = 32 * 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) + 4096 * 32000
    config = configs()["mistral-7b-v0.1"]
    windowed = from_values(Path("config.json"), config)
    full = from_values(Path("config.json"), config | {"sliding_window": None})
    assert training_flops_per_token(windowed, 131072) == pytest.approx(6 * (matrices + 32 * 2 * 4096 * 4032))
    assert training_flops_per_token(full, 131072) == pytest.approx(6 * (matrices + 32 * 2 * 4096 * 65536))
    # Not longer than the window: half of the sequence.
    assert training_flops_per_token(windowed, 4096) == pytest.approx(6 * (matrices + 32 * 2 * 4096 * 2048))


@pytest.mark.parametrize(
    ("name", "seq", "attended"),
    [
        # 10 of 62 layers attend to all 65,536 tokens on average, the others to 1024 - 1024^2 / 262144 = 1020.
        ("gemma-3-27b", 131072, {"attention": (10, 65536), "window": (52, 1020)}),
        # Half of the layers have a window of 128.
        ("gpt-oss-20b", 32768, {"attention": (12, 16384), "window": (12, 127.75)}),
        # Three of four layers attend within chunks of 8192; half a chunk on average.
        ("llama-4-scout", 32768, {"attention": (12, 16384), "chunk": (36, 4096)}),
        ("c4ai-command-r7b", 8192, {"attention": (8, 4096), "window": (24, 3072)}),
        # Bidirectional: a window of 128 tokens around each, and all of them in each third layer.
        ("modernbert-base", 1024, {"attention": (8, 1024), "window": (14, 128)}),
    ],
)
def test_each_layer_attends_within_its_window(name: str, seq: int, attended: dict[str, tuple[int, float]]) -> None:
    workload = from_values(Path("config.json"), configs()[name])
    found: dict[str, list[float]] = {}
    for kind in workload.layers:
        mean = mean_attended(kind, seq, is_causal=workload.is_causal)
        number, _ = found.get(kind.mixing, [0, mean])
        found[kind.mixing] = [number + kind.num_layers, mean]
    assert found == {mixing: [number, pytest.approx(mean)] for mixing, (number, mean) in attended.items()}


def test_a_recurrence_costs_the_same_at_any_length() -> None:
    """Mamba 2.8B: 64 layers of 5120 inner elements with states of 16, by hand."""
    workload = from_values(Path("config.json"), configs()["mamba-2.8b"])
    weights = 2560 * 10240 + 5120 * (160 + 32) + 160 * 5120 + 5120 * 2560
    scan = 3.5 * 5120 * 16 + 4 * 5120
    by_hand = 6 * (64 * (weights + scan) + 2560 * 50280)
    assert training_flops_per_token(workload, 2048) == pytest.approx(by_hand)
    assert training_flops_per_token(workload, 131072) == training_flops_per_token(workload, 2048)


def test_a_decoder_also_attends_to_all_of_its_encoder() -> None:
    """T5 large: 24 layers of either; the encoder attends to all tokens, the decoder to half, and to the encoder."""
    workload = from_values(Path("config.json"), configs()["t5-large"])
    layer, network = 4 * 1024 * 1024, 2 * 1024 * 4096
    scores = 2 * 1024 * 512
    by_hand = 24 * (layer + network + scores) + 24 * (2 * layer + network + scores // 2 + scores) + 1024 * 32128
    assert training_flops_per_token(workload, 512) == pytest.approx(6 * by_hand)


def test_the_cost_model_sees_the_windows_and_the_recurrences() -> None:
    """At 131,072 tokens, Gemma 3's attention has 10/62 + 52/62 * 1020/65536 of the scores of one without windows."""
    gemma = from_values(Path("config.json"), configs()["gemma-3-27b"])
    columns = workload_columns(gemma, 131072)
    assert columns["windowed"] == pytest.approx(10 / 62 + 52 / 62 * 1020 / 65536, rel=1e-3)
    assert workload_columns(gemma, 131072, document=1024)["windowed"] == pytest.approx(1.0)
    jamba = workload_columns(from_values(Path("config.json"), configs()["jamba-1.5-mini"]), 4096)
    assert jamba["recurrence"] == pytest.approx(28 / 32 * (3.5 * 8192 * 16 + 4 * 8192))
    assert workload_columns(gemma, 4096)["outside_parameters"] > 400e6  # the tower is on the first stage


# Keys that a published config does not have, or has otherwise: type, changes at the top and of the text model.
CHANGED = [
    ("nemotron-h-8b", {"tie_word_embeddings": True}, {}),
    ("default-kimi_linear", {"tie_word_embeddings": True}, {}),
    ("glm-4.7-flash", {"first_k_dense_replace": 2}, {}),
    ("ernie-4.5-21b-a3b", {"use_bias": True}, {}),
    ("bert-base", {"tie_word_embeddings": False}, {}),
    ("mbart-large-50", {"tie_word_embeddings": False}, {}),
    ("llama-4-scout", {"tie_word_embeddings": True}, {"tie_word_embeddings": False}),
    ("llama-4-scout", {"tie_word_embeddings": False}, {"tie_word_embeddings": True}),
    ("llama-3.2-11b-vision", {"tie_word_embeddings": True}, {"tie_word_embeddings": True}),
    ("llava-1.5-7b", {"tie_word_embeddings": False}, {"tie_word_embeddings": True}),
]


@pytest.mark.filterwarnings("ignore")
def test_changed_keys_count_as_in_transformers() -> None:
    """What a fuzz of configs found: whose word about tied tables counts, and keys that transformers ignores."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.logging.set_verbosity_error()
    wrong = {}
    for name, changes, of_text in CHANGED:
        config = {**shrunk(configs()[name], 3), **changes}
        if of_text:
            config["text_config"] = {**config["text_config"], **of_text}
        difference = counted(config) - parameters_in_transformers(config)
        if difference:
            wrong[name, str(changes)] = difference
    assert wrong == {}
