"""Counts against what the models' authors and hosts publish, and against published formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.catalog import all_models
from flatout.errors import InputError
from flatout.plan.counts import num_active_parameters, num_parameters, training_flops_per_token
from flatout.plan.model_names import workload
from flatout.records.plan import Workload

# Sums over the tensors of the published checkpoints (safetensors' metadata on the Hub), but for the first:
# GPT-3's table 2.1 rounds to 175.0 B.
PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-7b": 7_615_616_512,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    # 671,026,419,200 on the Hub, of which 58 * 256 are the router's correction biases, which no gradient trains
    "deepseek-v3": 671_026_419_200 - 58 * 256,
    # BertModel's 335,141,888 without its pooler (1024 * 1024 + 1024)
    "bert-large": 335_141_888 - 1_049_600,
    "vit-l16": 304_326_632,  # torchvision's vit_l_16
}


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_are_the_published_number(name: str, parameters: int) -> None:
    assert num_parameters(all_models()[name]) == parameters


@pytest.mark.parametrize(
    ("name", "billions", "within"), [("gpt3-175b", 175.0, 0.003), ("gpt3-6.7b", 6.7, 0.01), ("gpt3-125m", 0.125, 0.01)]
)
def test_gpt3_rounds_to_its_name(name: str, billions: float, within: float) -> None:
    assert num_parameters(all_models()[name]) / 1e9 == pytest.approx(billions, rel=within)


@pytest.mark.parametrize(
    ("name", "billions"), [("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.3), ("qwen3-235b-a22b", 22), ("deepseek-v3", 37)]
)
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert num_active_parameters(all_models()[name]) / 1e9 == pytest.approx(billions, rel=0.02)


@pytest.mark.parametrize(("layers", "hidden"), [(24, 2304), (96, 12288), (128, 25600)])
def test_flops_are_equation_3_of_narayanan(layers: int, hidden: int) -> None:
    """arXiv 2104.04473: 96 B s L h^2 (1 + s/6h + V/16Lh) with full recompute; without, 3/4 of the layers' part."""
    seq, vocab = 2048, 51200
    model = Workload(
        name="gpt", num_layers=layers, hidden=hidden, num_heads=16, num_kv_heads=16, head_dim=hidden // 16,
        ffn=4 * hidden, is_gated=False, vocab=vocab, is_tied=True,
    )  # fmt: skip
    expected = 72 * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (12 * layers * hidden))
    assert training_flops_per_token(model, seq, is_causal=False) == pytest.approx(expected, rel=1e-12)


def test_flops_of_llama3_8b_are_those_that_nvidia_publishes_with() -> None:
    """37,556 tokens/s on a GB300 are published as 1,933 TFLOP/s (Megatron-Bridge, Llama 3 8B, 8192 tokens)."""
    flops = training_flops_per_token(all_models()["llama3-8b"], 8192)
    assert flops * 37_556 / 1e12 == pytest.approx(1933, rel=0.001)


CONFIGS = {
    "llama3-8b": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "qwen2-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "hidden_act": "silu",
        "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False,
    },
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151936, "hidden_act": "silu", "num_experts": 128, "num_experts_per_tok": 8,
        "tie_word_embeddings": False,
    },
    "deepseek-v3": {
        "model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
        "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
        "hidden_act": "silu", "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "first_k_dense_replace": 3, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "tie_word_embeddings": False,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_json_has_the_published_parameters(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    assert num_parameters(workload(str(path))) == PUBLISHED[name]


def test_gpt2s_config_json_has_the_published_parameters(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, '
                    '"vocab_size": 50257, "activation_function": "gelu_new"}')  # fmt: skip
    assert num_parameters(workload(str(path))) == 124_439_808


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"hidden_size": 8, "num_attention_heads": 0}', "`num_attention_heads` .* at least 1, but is 0"),
        ('{"hidden_size": "8"}', "`hidden_size` .* at least 1, but is '8'"),
        ("{", "is no JSON"),
        ("[1]", "must hold one JSON object"),
        ('{"vocab_size": 5}', "must say `hidden_size`"),
    ],
)
def test_a_damaged_config_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        workload(str(path))


def test_an_unknown_model_names_the_nearest() -> None:
    with pytest.raises(InputError) as error:
        workload("lama3-8b")
    assert "`llama3-8b`" in error.value.hint
