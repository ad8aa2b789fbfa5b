"""What is trained, and by which optimizer: counts by hand, and what the memory and the time make of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.plan.model_counts import configs

from flatout.catalog import all_models
from flatout.errors import UsageError
from flatout.plan.adapters import trained_parameters
from flatout.plan.clusters import cluster
from flatout.plan.constants import Constants
from flatout.plan.counts import num_parameters, training_flops_per_token
from flatout.plan.huggingface import from_values
from flatout.plan.inputs import layout_columns, machine_columns, software_columns, stacked, workload_columns
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.step_time import step_time
from flatout.plan.training import training_columns
from flatout.plan_pipeline.request import PlanRequest, requested_training, search_context
from flatout.records.plan import Layout, Software, Training, Workload


def trained(name: str, **options: object) -> int:
    return sum(trained_parameters(all_models()[name], Training(**options)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "rank", "targets", "published"),
    [
        ("llama2-7b", 8, ("q_proj", "v_proj"), 4_194_304),  # peft's `print_trainable_parameters` in its examples
        ("llama2-7b", 16, ("linear",), 39_976_960),
        ("llama3-8b", 16, ("linear",), 41_943_040),
        ("llama3-8b", 16, ("attention",), 13_631_488),
        ("llama2-70b", 64, ("q_proj", "v_proj"), 131_072_000),
    ],
)
def test_adapters_have_the_parameters_that_peft_prints(
    name: str, rank: int, targets: tuple[str, ...], published: int
) -> None:
    assert trained(name, lora_rank=rank, lora_targets=targets) == published


def test_each_expert_has_its_own_adapter() -> None:
    """Mixtral: 32 layers of 8 experts, of three matrices between 4096 and 14336."""
    parameters = trained_parameters(all_models()["mixtral-8x7b"], Training(lora_rank=4, lora_targets=("linear",)))
    assert parameters.experts == 32 * 8 * 3 * 4 * (4096 + 14336)
    assert parameters.dense == 32 * 4 * (2 * (4096 + 4096) + 2 * (4096 + 1024))


def test_frozen_parts_are_not_trained() -> None:
    llava = from_values(Path("config.json"), configs()["llava-1.5-7b"])
    everything, tower = num_parameters(llava), llava.towers[0].parameters
    assert sum(trained_parameters(llava, Training(frozen=("vision",)))) == everything - tower
    tables = 2 * 32064 * 4096
    assert sum(trained_parameters(llava, Training(frozen=("vision", "embedding")))) == everything - tower - tables
    mixtral = all_models()["mixtral-8x7b"]
    assert trained_parameters(mixtral, Training(frozen=("experts",))).experts == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamw9"}, "--optimizer must be one of adam, .* but is `adamw9`"),
        ({"gradients": "fp8"}, "--gradients must be fp32 or bf16, but is `fp8`"),
        ({"gradients": "fp32", "is_pure_bf16": True}, "--pure-bf16 keeps gradients in bf16, but --gradients is fp32"),
        ({"base_bits": 5, "lora_rank": 8}, "--base-bits must be 16, 8 or 4, but is 5"),
        ({"base_bits": 4}, "--base-bits is for adapters, which need --lora-rank"),
        ({"lora_targets": "linear"}, "--lora-targets is for adapters, which need --lora-rank"),
        ({"lora_rank": 8, "lora_targets": "qkv"}, "must be matrices of llama3-8b, but got `qkv`"),
        ({"lora_rank": 8, "freeze": ["embedding"]}, "--freeze is for training without adapters"),
        ({"freeze": ["vision"]}, "--freeze must be a part of llama3-8b, but got `vision`"),
        ({"freeze": ["experts"]}, "--freeze experts needs a model with experts, but llama3-8b has none"),
    ],
)
def test_options_that_cannot_be_are_one_line(options: dict[str, object], message: str) -> None:
    given = {"optimizer": "adam", "lora_rank": 0, "lora_targets": "attention", "base_bits": 16, "freeze": ()} | options
    request = PlanRequest(model="llama3-8b", cluster="h100x8", training=requested_training(**given))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message) as caught:
        search_context(request, print)
    assert "\n" not in str(caught.value)


def test_the_columns_of_full_training_are_adams() -> None:
    columns = training_columns(all_models()["llama3-8b"])
    assert columns == {
        "trained": 1.0, "trained_experts": 1.0, "adapters": 0.0, "frozen_bytes": 0.0, "has_master_weights": 1.0,
        "optimizer_bytes": 12.0, "update_bytes": 30.0, "update_operations": 0.0,
    }  # fmt: skip


def test_a_base_of_4_bits_keeps_tables_and_norms_in_16() -> None:
    """Llama 3 8B: 6,979,321,856 weights in matrices at 4 + 1/8 + 1/512 bits, the other 1,050,939,392 at two bytes."""
    columns = training_columns(all_models()["llama3-8b"], Training(lora_rank=16, base_bits=4))
    linear, others = 6_979_321_856, 8_030_261_248 - 6_979_321_856
    by_hand = (linear * (4 + 1 / 8 + 1 / 512) / 8 + others * 2) / 8_030_261_248
    assert columns["frozen_bytes"] == pytest.approx(by_hand, rel=1e-9)


def test_muon_keeps_8_bytes_for_matrices_and_12_for_the_rest() -> None:
    columns = training_columns(all_models()["llama3-8b"], Training(optimizer="muon"))
    in_matrices = 6_979_321_856 / 8_030_261_248
    assert columns["optimizer_bytes"] == pytest.approx(8 * in_matrices + 12 * (1 - in_matrices))
    # A square matrix of n: five steps of three multiplications of 2 n^3.
    square = Workload(
        name="one", num_layers=1, hidden=64, num_heads=1, num_kv_heads=1, head_dim=64, ffn=64, is_gated=False, vocab=1,
        is_tied=True,
    )  # fmt: skip
    operations = training_columns(square, Training(optimizer="muon"))["update_operations"]
    assert operations == pytest.approx(6 * 5 * 3 * 2 * 64**3 / num_parameters(square))


def parts_of(training: Training) -> tuple[dict[str, float], dict[str, float]]:
    """Return the memory's and the time's parts of Llama 3 8B on one GPU."""
    machine, shares = cluster("h100x1")
    columns = {
        **workload_columns(all_models()["llama3-8b"], 4096, training=training),
        **machine_columns(machine, "bf16", shares),
        **software_columns(Software()),
        **layout_columns(Layout(recompute="full")),
    }
    inputs = stacked([{name: float(value) for name, value in columns.items()}])
    held, taken = memory(inputs, MemoryConstants()).parts, step_time(inputs, Constants()).parts_s
    return {name: float(part[0]) for name, part in held.items()}, {name: float(part[0]) for name, part in taken.items()}


def test_adapters_have_states_for_themselves_alone() -> None:
    full, full_s = parts_of(Training())
    lora, lora_s = parts_of(Training(lora_rank=16, lora_targets=("linear",)))
    adapters, everything = 41_943_040, 8_030_261_248
    assert lora["optimizer"] == pytest.approx(full["optimizer"] * adapters / everything)
    assert lora["gradients"] == pytest.approx(full["gradients"] * adapters / everything)
    assert lora["weights"] == pytest.approx(2 * (everything + adapters), rel=1e-6)
    assert lora_s["optimizer"] < 0.01 * full_s["optimizer"]
    # Forward, recomputation and backward of inputs instead of the fourth multiplication, that of weight gradients.
    assert 0.7 < lora_s["compute"] / full_s["compute"] < 0.8


def test_a_quantized_base_is_smaller() -> None:
    lora, _ = parts_of(Training(lora_rank=16, lora_targets=("linear",)))
    qlora, _ = parts_of(Training(lora_rank=16, lora_targets=("linear",), base_bits=4))
    # 13.96 GB of matrices in 16 bits become 3.60 GB.
    assert lora["weights"] - qlora["weights"] == pytest.approx(13.96e9 - 3.60e9, rel=0.002)


@pytest.mark.parametrize(
    ("optimizer", "num_bytes"), [("adam", 12), ("adam-8bit", 6.03125), ("lion", 8), ("sgd", 8), ("adafactor", 4)]
)
def test_an_optimizer_keeps_its_bytes_per_parameter(optimizer: str, num_bytes: float) -> None:
    held, _ = parts_of(Training(optimizer=optimizer))
    assert held["optimizer"] == pytest.approx(num_bytes * 8_030_261_248, rel=1e-6)


@pytest.mark.parametrize(
    ("optimizer", "num_bytes"), [("adam", 4), ("adam-8bit", 2.03125), ("lion", 2), ("sgd", 2), ("adafactor", 0)]
)
def test_in_pure_bf16_an_optimizer_keeps_moments_of_16_bits_and_no_weights(optimizer: str, num_bytes: float) -> None:
    held, _ = parts_of(Training(optimizer=optimizer, gradients="bf16", is_pure_bf16=True))
    assert held["optimizer"] == pytest.approx(num_bytes * 8_030_261_248, rel=1e-6)


def test_70_billion_parameters_in_pure_bf16_need_what_torchtune_reports() -> None:
    """torchtune's issue 987: Llama 3 70B on 8 A100 by FSDP2, 8-bit Adam, pure bf16: 51 GB of training state.

    By hand: (2 + 2 + 2.03) bytes * 70.55e9 / 8 = 53.2 GB.
    """
    request = PlanRequest(
        model="llama3-70b",
        cluster="a100x8",
        seq=2048,
        training=requested_training(
            optimizer="adam-8bit", lora_rank=0, lora_targets="attention", base_bits=16, freeze=(), is_pure_bf16=True
        ),
    )
    context = search_context(request, print)
    columns = {
        **workload_columns(all_models()["llama3-70b"], 2048, training=request.training),
        **machine_columns(context.spec.cluster, "bf16", {}),
        **software_columns(context.software),
        **layout_columns(Layout(dp=8, zero=3, recompute="full")),
    }
    parts = memory(stacked([{name: float(value) for name, value in columns.items()}]), MemoryConstants()).parts
    states = parts["optimizer"] + parts["gradients"] + parts["weights"]
    tables = 2 * 128256 * 8192
    two_layers = 2 * (70_553_706_496 - tables) / 80
    gathered = (2 + 2) * (tables + two_layers)  # bf16 weights, and their gradients until they are reduced
    assert float(states[0]) == pytest.approx(53.2e9 + gathered, rel=0.01)


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_numbers_of_16_bits_are_for_bf16(precision: str) -> None:
    training = Training(gradients="bf16")
    with pytest.raises(UsageError, match=f"--gradients bf16 is for training in bf16.* --precision is {precision}"):
        search_context(PlanRequest(model="llama3-8b", cluster="h100x8", precision=precision, training=training), print)
    pure = Training(gradients="bf16", is_pure_bf16=True)
    with pytest.raises(UsageError, match=f"--pure-bf16 is for training in bf16, but --precision is {precision}"):
        search_context(PlanRequest(model="llama3-8b", cluster="h100x8", precision=precision, training=pure), print)


def test_operations_without_weight_gradients_are_two_thirds() -> None:
    model = all_models()["llama3-8b"]
    with_gradients = training_flops_per_token(model, 1)
    assert training_flops_per_token(model, 1, trains_weights=False) == pytest.approx(with_gradients * 2 / 3, rel=1e-4)
