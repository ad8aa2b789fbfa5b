"""Counts against what the models' authors and hosts publish, and against published formulas."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.catalog import all_models
from flatout.errors import InputError, UsageError
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
    "llama3.2-1b": 1_235_814_400,
    "llama3.2-3b": 3_212_749_824,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-72b": 72_706_203_648,
    "qwen3-4b": 4_022_468_096,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "bert-base": 109_482_240 - 590_592,
    "vit-b16": 86_567_656,
    "vit-h14": 632_045_800,
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
    "llama3.1-405b": {
        "model_type": "llama", "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
        "tie_word_embeddings": False, "attention_bias": False,
    },
    "llama3-70b": {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "hidden_act": "silu",
        "tie_word_embeddings": False,
    },
    "qwen3-235b-a22b": {
        "model_type": "qwen3_moe", "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
        "num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "vocab_size": 151936, "hidden_act": "silu", "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "tie_word_embeddings": False,
    },
    "qwen2-0.5b": {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "hidden_act": "silu",
        "tie_word_embeddings": True,
    },
    "bert-base": {
        "model_type": "bert", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "vocab_size": 30522, "hidden_act": "gelu", "max_position_embeddings": 512,
        "type_vocab_size": 2,
    },
    "vit-b16": {
        "model_type": "vit", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "hidden_act": "gelu", "image_size": 224, "patch_size": 16, "num_channels": 3,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_json_has_the_published_parameters(name: str, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    assert num_parameters(workload(str(path))) == PUBLISHED[name]


@pytest.mark.parametrize(("experts", "step", "published"), [(16, 1, 108_641_793_536), (128, 2, 401_583_781_376)])
def test_llama_4s_config_json_has_the_published_parameters_with_its_tower(
    experts: int, step: int, published: int, tmp_path: Path
) -> None:
    """The published sums have 0.86 B more in the vision model, which is counted as a tower."""
    text = {
        "model_type": "llama4_text", "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 202048, "hidden_act": "silu", "num_local_experts": experts, "num_experts_per_tok": 1,
        "interleave_moe_layer_step": step, "tie_word_embeddings": False,
    }  # fmt: skip
    path = tmp_path / "config.json"
    vision = {
        "model_type": "llama4_vision_model", "hidden_size": 1408, "image_size": 336, "intermediate_size": 5632,
        "num_attention_heads": 16, "num_hidden_layers": 34, "patch_size": 14, "projector_input_dim": 4096,
        "projector_output_dim": 4096, "vision_output_dim": 4096,
    }  # fmt: skip
    path.write_text(json.dumps({"model_type": "llama4", "text_config": text, "vision_config": vision}))
    read = workload(str(path))
    assert num_parameters(read) == published
    assert [tower.name for tower in read.towers] == ["vision"]
    in_tower = read.towers[0].parameters
    assert num_active_parameters(read) - in_tower == pytest.approx(17e9, rel=0.02)


def test_mixtral_8x22b_has_the_published_parameters(tmp_path: Path) -> None:
    """140,630,071,296 on the Hub, with a vocabulary of 32,768 (v0.3)."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS["mixtral-8x7b"] | {"hidden_size": 6144, "intermediate_size": 16384,
                               "num_hidden_layers": 56, "num_attention_heads": 48, "vocab_size": 32768}))  # fmt: skip
    assert num_parameters(workload(str(path))) == pytest.approx(140_630_071_296, rel=0.001)
    assert num_parameters(all_models()["mixtral-8x22b"]) == num_parameters(workload(str(path)))


def test_widths_can_be_typed() -> None:
    """Llama 3 8B, GPT-2 and Mixtral 8x7B by their widths."""
    typed = workload("layers=32,hidden=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256")
    assert num_parameters(typed) == PUBLISHED["llama3-8b"]
    small = workload("layers=12, hidden=768, heads=12, vocab=50257, gelu, tied")
    assert num_parameters(small) == pytest.approx(124_439_808, rel=0.01)
    mixture = workload("layers=32,hidden=4096,heads=32,kv_heads=8,vocab=32000,experts=8,topk=2,expert_ffn=14336")
    assert num_parameters(mixture) == PUBLISHED["mixtral-8x7b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=32,heads=8", "lacks hidden"),
        ("layers=0,hidden=8,heads=8", "lacks layers"),
        ("layers=x,hidden=8,heads=8", "has `layers=x`"),
        ("layers=2,hidden=8,heads=8,colour=3", "has `colour`"),
        ("layers=2,hidden=8,heads=8,experts=4", "must have topk=N"),
    ],
)
def test_badly_typed_widths_are_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        workload(text)


def test_gpt2s_config_json_has_the_published_parameters(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, '
                    '"vocab_size": 50257, "activation_function": "gelu_new"}')  # fmt: skip
    assert num_parameters(workload(str(path))) == 124_439_808


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "llama", "num_attention_heads": 0}', "`num_attention_heads` .* at least 1, but is 0"),
        ('{"model_type": "gpt2", "n_embd": "8"}', "`n_embd` .* at least 1, but is '8'"),
        ("{", "is not valid JSON"),
        ("[1]", "must hold one JSON object"),
        ('{"vocab_size": 5}', "must say `model_type`, but has only: vocab_size$"),
        ("{}", "must say `model_type`, but has nothing in it"),
        ('{"model_type": "llava", "text_config": {}}', "must say `vision_config`"),
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


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "meta-llama/Llama-3.1-8B", "LLAMA3.1-8b", "llama_3.1_8b"])
def test_a_name_may_be_spelled_as_its_publisher_does(name: str) -> None:
    assert workload(name).name == "llama3.1-8b"
