"""Free text in tables of measured runs is read as a person reads it."""

from __future__ import annotations

from datetime import date

import pytest

from flatout.catalog import all_systems
from flatout.catalog.run_spellings import number_in, run_spellings, value_of

TABLES = run_spellings()


@pytest.mark.parametrize(
    ("text", "system", "link_gb_per_s"),
    [
        ("A100-80GB", "a100", None),
        ("A100-40GB", "a100-40gb", None),
        ("H100-96GB-HBM2e-500W", "h100", None),
        ("H800-80GB", "h100", 200),
        ("A800", "a100", 200),
        ("V100-16GB", "v100", None),
        ("V100-32GB", "v100-32gb", None),
        ("GB300", "gb300", None),
        ("B300", "b300", None),
        ("MI355X", "mi355x", None),
        ("MI250X", "mi250x", None),
        ("RTX 3090", "rtx3090", None),
        ("RTX A6000 48GB", "a6000", None),
        ("A10", "a10", None),
        ("L4", "l4", None),
        ("L40S", "l40s", None),
    ],
)
def test_a_gpu_is_known_by_its_name(text: str, system: str, link_gb_per_s: float | None) -> None:
    gpu = TABLES.gpu_named(text)
    assert gpu is not None and (gpu.value, gpu.link_gb_per_s) == (system, link_gb_per_s)


def test_an_unknown_gpu_is_none() -> None:
    assert TABLES.gpu_named("Gaudi 3") is None


def test_every_gpu_is_a_system_of_the_catalogue() -> None:
    assert {gpu.value for gpu in TABLES.gpu} <= all_systems().keys()
    assert date.fromisoformat(TABLES.date)


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("", "bf16"),
        ("bf16-amp", "bf16"),
        ("fp16/bf16", "fp16"),
        ("FP8-CS", "fp8"),
        ("MXFP8", "fp8"),
        ("float8-rowwise", "fp8-rowwise"),
        ("rowwise", "bf16"),
        ("NVFP4", "fp4"),
        ("fp32", "fp32"),
        ("fp32 and 16", "bf16"),
    ],
)
def test_a_precision_is_read(text: str, precision: str) -> None:
    assert value_of(TABLES.precision, text) == precision


@pytest.mark.parametrize(
    ("text", "stage"),
    [
        ("", 0),
        ("DDP (no ZeRO)", 0),
        ("DDP+dist-optimizer(ZeRO-1)", 1),
        ("ZeRO-2", 2),
        ("FSDP shard-grad-op(ZeRO-2)", 2),
        ("FSDP full-shard(ZeRO-3)", 3),
        ("Megatron-FSDP (group 64)", 3),
        ("HSDP", 3),
    ],
)
def test_a_zero_stage_is_read(text: str, stage: int) -> None:
    assert value_of(TABLES.zero, text) == stage


@pytest.mark.parametrize(
    ("model", "size"),
    [("Llama2-70b", 32000), ("Llama3-8B", 128256), ("Mixtral-8x7B", 32000), ("Nemotron-4", 256000), ("GPT", 51200)],
)
def test_a_vocabulary_follows_from_the_models_name(model: str, size: int) -> None:
    assert value_of(TABLES.vocabulary, model) == size


@pytest.mark.parametrize(
    ("pattern", "text", "number"),
    [
        (TABLES.patterns.nvlink_domain, "NVLink domain 72; DGX-GB200 system", 72),
        (TABLES.patterns.nvlink_domain, "DGX-H100", None),
        (TABLES.patterns.shard_group, "megatron-fsdp (group 64)", 64),
        (TABLES.patterns.shard_group, "hybrid shard of 4", 4),
        (TABLES.patterns.hbm2e_gb, "h100-96gb-hbm2e-500w", 96),
        (TABLES.patterns.hbm2e_gb, "h100-80gb", None),
        (TABLES.patterns.power_limit_w, "h100-96gb-hbm2e-500w", 500),
    ],
)
def test_a_number_in_a_text_is_read(pattern: str, text: str, number: int | None) -> None:
    assert number_in(pattern, text) == number
