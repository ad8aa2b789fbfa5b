"""What each framework can run: the limits of the catalogue, each on both of its sides, by layouts typed by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from flatout.catalog import all_models
from flatout.catalog.targets import NO_LIMIT, facts_of_layout, runners, target_named, targets
from flatout.records.plan import FULL_TRAINING, Layout, Training

LLAMA, EXPERTS = all_models()["llama3-8b"], all_models()["qwen3-30b-a3b"]  # 32 heads of 8 groups; 32 of 4, 128 experts
ALL = ("megatron", "torchtitan", "deepspeed", "fsdp2", "nemo")

NUMBER_TYPES = (FULL_TRAINING, Training(gradients="bf16"), Training(gradients="bf16", is_pure_bf16=True))


def layout(**degrees: int | str | bool) -> Layout:
    return msgspec.convert(degrees, Layout)


def who(model: str, precision: str = "bf16", **degrees: int | str | bool) -> set[str]:
    return set(runners(layout(**degrees), all_models()[model], precision))


@pytest.mark.parametrize(
    ("degrees", "able"),
    [
        ({"dp": 8, "zero": 3}, {*ALL}),
        ({"dp": 8}, {*ALL}),
        # Schedules
        ({"pp": 2, "dp": 4, "num_micro_batches": 8}, {"megatron", "torchtitan", "deepspeed", "nemo"}),
        ({"pp": 2, "dp": 4, "num_micro_batches": 8, "schedule": "zero-bubble"}, set()),
        ({"pp": 2, "dp": 4, "num_micro_batches": 8, "schedule": "gpipe"}, {"torchtitan"}),
        ({"pp": 2, "vpp": 2, "dp": 4, "num_micro_batches": 8}, {"megatron", "torchtitan", "nemo"}),
        ({"pp": 4, "dp": 2, "num_micro_batches": 4}, {"megatron", "torchtitan", "deepspeed", "nemo"}),
        ({"pp": 4, "dp": 2, "num_micro_batches": 3}, {"megatron", "deepspeed", "nemo"}),
        # ZeRO
        ({"dp": 8, "zero": 1}, {"megatron", "deepspeed", "fsdp2", "nemo"}),
        ({"pp": 2, "dp": 4, "zero": 1, "num_micro_batches": 2}, {"megatron", "torchtitan", "deepspeed", "nemo"}),
        ({"pp": 2, "dp": 4, "zero": 3, "num_micro_batches": 2}, {"torchtitan"}),
        ({"dp": 8, "zero": 2}, {*ALL}),
        ({"dp": 8, "zero": 3, "shard": 4}, {*ALL}),
        ({"dp": 8, "zero": 1, "shard": 4}, {"megatron", "fsdp2", "nemo"}),
        ({"dp": 4, "cp": 2, "zero": 3, "shard": 4}, {"megatron", "torchtitan", "nemo"}),
        # Degrees
        ({"tp": 2, "dp": 4, "zero": 3}, {*ALL}),
        ({"tp": 2, "dp": 4}, {"megatron", "torchtitan", "deepspeed", "nemo"}),
        ({"tp": 8, "dp": 1}, {*ALL}),
        ({"tp": 16, "dp": 1}, {"megatron", "nemo"}),
        ({"tp": 2, "sequence_parallel": True, "dp": 4, "zero": 3}, {"megatron", "torchtitan", "nemo"}),
        ({"tp": 2, "pp": 2, "dp": 2, "num_micro_batches": 2}, {"megatron", "torchtitan", "nemo"}),
        ({"cp": 2, "dp": 4, "zero": 3}, {"megatron", "torchtitan", "deepspeed", "nemo"}),
        ({"cp": 2, "dp": 4}, {"megatron", "deepspeed", "nemo"}),
        ({"cp": 64, "dp": 1, "zero": 3}, {"megatron", "torchtitan", "nemo"}),
        ({"cp": 2, "tp": 2, "dp": 2, "zero": 3}, {"megatron", "torchtitan", "nemo"}),
        # Memory
        ({"dp": 8, "zero": 1, "offload": True}, {"megatron", "deepspeed", "nemo"}),
        ({"dp": 8, "zero": 3, "offload": True}, {"deepspeed"}),
        ({"dp": 8, "offload": True}, set()),
        ({"tp": 8, "dp": 1, "offload": True}, {"megatron", "deepspeed", "nemo"}),  # one replica: nothing to shard
        ({"dp": 8, "zero": 3, "recompute": "selective"}, {"megatron", "torchtitan", "nemo"}),
        ({"dp": 8, "zero": 3, "recompute": "full"}, {*ALL}),
    ],
)
def test_a_dense_models_layout_runs_on(degrees: dict[str, int], able: set[str]) -> None:
    assert who("llama3-8b", **degrees) == able


@pytest.mark.parametrize(
    ("degrees", "able"),
    [
        ({"ep": 4, "dp": 8, "zero": 1}, {"megatron", "deepspeed", "nemo"}),
        ({"ep": 4, "dp": 8, "zero": 3}, {"megatron", "torchtitan", "deepspeed", "nemo"}),
        ({"ep": 4, "dp": 8}, {"megatron", "deepspeed", "nemo"}),  # torchtitan: EP takes ranks that shard
        ({"ep": 4, "dp": 8, "zero": 3, "shard": 2}, set()),  # 2 groups of experts' replicas, but 4 of the others
        ({"ep": 2, "dp": 8, "zero": 3, "shard": 4}, {"megatron", "torchtitan", "nemo"}),
        ({"tp": 2, "sequence_parallel": True, "ep": 4, "dp": 4, "zero": 1}, {"megatron", "nemo"}),
        ({"tp": 2, "ep": 4, "dp": 4, "zero": 3}, {"torchtitan"}),
        ({"ep": 4, "cp": 2, "dp": 4, "zero": 1}, {"megatron", "deepspeed", "nemo"}),
        ({"ep": 4, "cp": 2, "dp": 4, "zero": 3}, {"megatron", "torchtitan", "nemo"}),
    ],
)
def test_a_layout_with_experts_runs_on(degrees: dict[str, int], able: set[str]) -> None:
    assert who("qwen3-30b-a3b", **degrees) == able


@pytest.mark.parametrize(
    ("precision", "able"),
    [
        ("bf16", {*ALL}),
        ("fp16", {"megatron", "deepspeed", "fsdp2", "nemo"}),
        ("fp8", {*ALL}),
        ("fp4", {"megatron", "torchtitan", "deepspeed", "fsdp2"}),
        ("fp32", {"megatron", "torchtitan", "deepspeed", "fsdp2"}),
    ],
)
def test_a_precision_runs_on(precision: str, able: set[str]) -> None:
    assert who("llama3-8b", precision, dp=8, zero=3) == able


def test_torchtitan_has_no_configs_of_other_models() -> None:
    assert "torchtitan" not in who("bert-large", dp=8, zero=3)
    assert "torchtitan" not in who("vit-l16", dp=8, zero=3)


def test_every_limit_is_broken_by_a_layout_and_kept_by_another() -> None:
    """A limit that nothing breaks, or everything, was typed wrong."""
    rng = np.random.default_rng(0)

    def pick(*values: int) -> int:
        return int(rng.choice(values))

    samples = []
    for _ in range(4000):
        tp, pp, cp, zero = pick(1, 2, 8, 16), pick(1, 2), pick(1, 2, 64), pick(0, 1, 2, 3)
        dp, shard = pick(1, 8), pick(0, 2, 8)
        samples.append(
            Layout(
                tp=tp,
                sequence_parallel=bool(tp > 1 and pick(0, 1)),
                pp=pp,
                vpp=pick(1, 2, 5) if pp > 1 else 1,  # five chunks of two stages divide no model's layers evenly
                cp=cp,
                ep=pick(1, 2, 4),
                dp=dp,
                zero=zero,
                shard=shard if zero and shard and dp * cp % shard == 0 else 0,
                offload=bool(pick(0, 1)),
                num_micro_batches=pick(1, 8),
                recompute=str(rng.choice(["none", "selective", "full"])),
                schedule=str(rng.choice(["1f1b", "gpipe", "zero-bubble"])) if pp > 1 else "1f1b",
            )
        )
    models = [LLAMA, EXPERTS, all_models()["bert-large"]]
    facts = [
        facts_of_layout(
            sample, models[number % 3], ("bf16", "fp16", "fp32")[number % 7 % 3], NUMBER_TYPES[number % 5 % 3]
        )
        for number, sample in enumerate(samples)
    ]
    for target in targets():
        for limit in target.limit:
            broken = [bool(limit.is_broken(each)) for each in facts]
            assert any(broken) and not all(broken), (target.name, limit.why)


def test_columns_say_the_same_as_single_layouts() -> None:
    singles = [
        facts_of_layout(Layout(tp=tp, pp=pp, dp=8, zero=zero, num_micro_batches=2), LLAMA, "bf16")
        for tp in (1, 2, 16)
        for pp in (1, 2, 4)
        for zero in (0, 1, 3)
    ]
    columns = {
        name: value if isinstance(value, str) else np.array([each[name] for each in singles])
        for name, value in singles[0].items()
    }
    for target in targets():
        found = target.broken_limits(columns, len(singles))
        for index, single in zip(found, singles, strict=True):
            limit = target.broken_limit(single)
            assert limit == (None if index == NO_LIMIT else target.limit[index])


def test_every_limit_has_a_source_and_every_target_a_version_and_date() -> None:
    for target in targets():
        assert target == target_named(target.name)
        assert target.version and target.source and target.date.startswith("20")
        for limit in target.limit:
            assert limit.source and limit.needs
            assert not limit.why.endswith(".")


@pytest.mark.parametrize(
    ("training", "zero", "names"),
    [
        (FULL_TRAINING, 3, {"torchtitan", "deepspeed", "fsdp2", "megatron", "nemo"}),
        # torchtitan's mixed_precision_reduce is fp32, and FSDP2 keeps a gradient in the type of its parameter.
        (Training(gradients="bf16"), 3, {"deepspeed", "megatron", "nemo"}),
        # Megatron-Core's mixed-precision optimizer has fp32 copies.
        (Training(gradients="bf16", is_pure_bf16=True), 3, {"torchtitan", "deepspeed", "fsdp2"}),
        # DeepSpeed's bf16_master_weights_and_grads is ZeRO's.
        (Training(gradients="bf16", is_pure_bf16=True), 0, {"torchtitan", "fsdp2"}),
    ],
)
def test_each_framework_keeps_its_own_types_of_numbers(training: Training, zero: int, names: set[str]) -> None:
    layout = Layout(dp=8, zero=zero, num_micro_batches=2)
    assert set(runners(layout, LLAMA, "bf16", training)) == names
