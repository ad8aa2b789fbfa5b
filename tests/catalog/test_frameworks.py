"""What is known of frameworks: every entry is well formed, has a source, and applies to the names that it is for."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path

import msgspec
import pytest

import flatout.catalog
from flatout.catalog.frameworks import frameworks_named, options_of
from flatout.records.plan import Software

FILE = Path(flatout.catalog.__file__).with_name("frameworks.toml")
ENTRIES = tomllib.loads(FILE.read_text())
EVERY = [*ENTRIES["framework"], *ENTRIES["option"]]


@pytest.mark.parametrize("entry", EVERY, ids=lambda entry: entry["name"])
def test_an_entry_sets_fields_of_software_and_says_from_where(entry: dict[str, object]) -> None:
    settings = entry["software"]
    assert isinstance(settings, dict) and settings
    types = {field.name: field.type for field in msgspec.structs.fields(Software)}
    assert {name: type(value) for name, value in settings.items()} == {name: types[name] for name in settings}
    assert str(entry["source"]).strip()
    assert date.fromisoformat(str(entry["date"]))


def test_options_name_frameworks_of_the_file() -> None:
    names = [entry["name"] for entry in ENTRIES["framework"]]
    assert len(set(names)) == len(names)
    assert {name for option in ENTRIES["option"] for name in option.get("frameworks", ())} <= set(names)


# ZeRO stage of a framework that was not told one.
USUAL_ZERO = {
    "NeMo 25.02": 1,
    "Megatron-Core r0.8": 1,
    "torchtitan FSDP2": 3,
    "NeMo Automodel": 3,
    "Megatron-LM 2021": 0,
}


def settings_of(**columns: str) -> dict[str, bool | float]:
    settings: dict[str, bool | float] = {}
    for entry in (*frameworks_named(columns["framework"]), *options_of(columns)):
        settings |= entry.software
    return settings


def test_early_frameworks_have_no_fused_attention() -> None:
    early = ["Megatron-LM 2021", "Megatron-LM 2022", "Megatron-DeepSpeed (BLOOM)", "OneFlow"]
    assert {name for name in early if settings_of(framework=name)["fused_attention"] is False} == set(early)
    assert "fused_attention" not in settings_of(framework="Megatron-Core r0.8")


def test_nvidias_frameworks_interleave_and_have_kernels_for_the_gpu() -> None:
    entries = frameworks_named("NeMo/Megatron-Core 24.07")
    assert max(entry.most_chunks or 0 for entry in entries) == 10
    assert settings_of(framework="NeMo/Megatron-Core 24.07")["has_late_attention"] is True
    # NeMo Automodel is FSDP2 with Transformer Engine's kernels: it neither interleaves nor runs plain operators.
    automodel = frameworks_named("NeMo AutoModel")
    assert all(entry.most_chunks is None for entry in automodel)
    assert max(entry.usual_zero or 0 for entry in automodel) == 3
    assert settings_of(framework="NeMo AutoModel")["has_late_attention"] is True
    assert "is_eager" not in settings_of(framework="NeMo AutoModel")


def test_sharding_is_the_frameworks_usual_one_where_a_row_is_silent() -> None:
    usual = {name: max((entry.usual_zero or 0 for entry in frameworks_named(name)), default=0) for name in USUAL_ZERO}
    assert usual == USUAL_ZERO


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"framework": "torchtitan fsdp2"}, {"is_eager": True}),
        ({"framework": "torchtitan fsdp2", "notes": "compile; mem gib"}, {"is_eager": False}),
        ({"framework": "torchtitan fsdp2", "notes": "asynctp+compile"}, {"overlaps_tp": 0.5}),
        ({"framework": "megatron-bridge"}, {"overlaps_tp": 1.0}),
        ({"framework": "megatron-bridge", "sharding": "megatron-fsdp (group 8)"}, {"overlaps_tp": None}),
        ({"framework": "oneflow", "tp": "1"}, {"overlaps_dp": True, "overlaps_pp": True}),
        ({"framework": "oneflow", "tp": "16"}, {"overlaps_dp": False, "overlaps_pp": True}),
        ({"framework": "deepspeed zero-3 + hf", "sharding": "zero-3"}, {"overlaps_dp": None, "gathers_again": True}),
        ({"framework": "megatron-lm + deepspeed zero-3", "sharding": "zero-3"}, {"overlaps_dp": False}),
        ({"framework": "megatron-deepspeed, flash attention 2"}, {"fused_attention": True}),
        ({"framework": "megatron-deepspeed", "notes": "without flash attention"}, {"fused_attention": False}),
        ({"framework": "megatron-core 0.6"}, {"overlaps_tp": None, "gradient_bytes": None}),
        ({"framework": "megatron-core", "notes": "--tp-comm-overlap --grad-reduce-in-bf16"}, {"overlaps_tp": 1.0}),
        ({"framework": "megatron-core", "notes": "--grad-reduce-in-bf16"}, {"held_gradient_bytes": 2.0}),
        ({"framework": "nemo/megatron-core", "source": "dgxc v25.05"}, {"has_early_experts": True, "overlaps_tp": 1.0}),
        ({"framework": "nemo/megatron-core", "source": "dgxc v25.10"}, {"has_early_experts": None}),
        ({"framework": "megatron-core", "notes": "deepep, no graphs"}, {"lacks_graphs": True}),
        ({"framework": "megatron-core", "notes": "partial cuda graphs"}, {"lacks_graphs": None}),
        ({"framework": "megatron-bridge"}, {"lacks_graphs": None}),
        ({"framework": "nanotron"}, {"is_known": False}),
        ({"framework": "nemo automodel (fsdp2)"}, {"held_gradient_bytes": 2.0, "optimizer_share": 0.34}),
        ({"framework": "torchtitan fsdp2", "recompute": "selective"}, {"selective_share": 0.5}),
        ({"framework": "any", "notes": "eight loss chunks"}, {"logits_bytes": 1.5}),
        ({"framework": "deepspeed zero-2 + hf", "sharding": "zero-2"}, {"overlaps_dp": None, "gathers_again": None}),
        ({"framework": "megatron-deepspeed", "precision": "bf16"}, {"held_gradient_bytes": 6.0}),
        ({"framework": "megatron-deepspeed", "precision": "fp16"}, {"held_gradient_bytes": 2.0}),
        ({"framework": "any", "precision": "fp16 and fp8"}, {"gradient_bytes": None}),
        ({"framework": "any", "precision": "bf16-pure"}, {"gradient_bytes": 2.0}),
        ({"framework": "any", "notes": "cuda_launch_blocking=1"}, {"is_blocking": True}),
    ],
)
def test_what_a_row_says_changes_what_its_framework_does(
    columns: dict[str, str], expected: dict[str, bool | float | None]
) -> None:
    settings = settings_of(**columns)
    assert {name: settings.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("notes", "overlaps_ep", "uses_graphs"),
    [
        ("hybridep; overlap_moe_expert_parallel_comm", True, False),
        ("1f1b ep a2a overlap, full-iteration cuda graphs", True, True),
        ("full cuda graph", False, True),
        ("cuda graphs of attention only", False, False),  # the host still launches the experts
        ("ep 64", False, False),
    ],
)
def test_rows_say_what_their_experts_overlap_and_whether_a_graph_is_the_iteration(
    notes: str, overlaps_ep: bool, uses_graphs: bool
) -> None:
    settings = settings_of(framework="megatron-core", notes=notes)
    assert (settings.get("overlaps_ep", False), settings.get("uses_graphs", False)) == (overlaps_ep, uses_graphs)


@pytest.mark.parametrize(
    ("source", "is_compiled"),
    [
        ("torchtitan benchmarks/llama3_h100_202412_torchtitan.md", False),
        ("torchtitan benchmarks/asynctp_2025-02.md", False),
        ("torchtitan benchmarks/asynctp_2025-03.md", True),
        ("torchtitan benchmarks/llama3-8b_h200_202506_trainy.md", True),
        ("torchtitan benchmarks/2026-01.md", True),
        ("torchtitan at 12025067", False),  # a longer number is no month
        ("torchtitan at 202513", False),
        ("", False),
    ],
)
def test_torchtitan_compiles_the_loss_from_a_month_on(source: str, is_compiled: bool) -> None:
    """github.com/pytorch/torchtitan, pulls 755 (2024-12: not compiled) and 1033 (2025-03: compiled)."""
    expected = 4.0 if is_compiled else 12.0
    assert settings_of(framework="torchtitan fsdp2", notes="compile", source=source)["logits_bytes"] == expected
    assert settings_of(framework="torchtitan fsdp2", notes="eager", source=source)["logits_bytes"] == 12.0


@pytest.mark.parametrize(
    ("notes", "is_graphed"),
    [
        ("26.06 nemo container", True),
        ("26.06.01 nemo container; force-balanced", True),
        ("27.01 nemo container", True),
        ("26.04.01 nemo container", False),
        ("25.11 nemo container", False),
        ("26.08 other container", False),
        ("", False),
    ],
)
def test_mxfp8_recipes_are_graphed_from_a_release_on(notes: str, is_graphed: bool) -> None:
    assert settings_of(framework="megatron-bridge", precision="mxfp8", notes=notes).get("uses_graphs", False) is (
        is_graphed
    )
    assert "uses_graphs" not in settings_of(framework="megatron-bridge", precision="bf16", notes=notes)
