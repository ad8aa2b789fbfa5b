"""What mixtures of experts add: wide experts, experts that are split by TP, repeated experts, early releases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.plan.test_model import machine_of, one_case

from flatout.catalog import all_models
from flatout.plan.calibrate import predict_logs
from flatout.plan.constants import Constants
from flatout.plan.memory import MemoryConstants, memory
from flatout.plan.runs import as_inputs, read_runs
from flatout.plan.shipped import shipped
from flatout.plan.step_time import step_time
from flatout.records.plan import Layout, Software

COLUMNS = (
    "layers,hidden,heads,kv_heads,ffn,vocab,seq_len,experts,topk,moe_ffn,gpu,num_gpus,tp,pp,ep,micro_batch,global_batch"
)
MIXTRAL = "32,4096,32,8,14336,32000,4096,8,2,14336,H100-80GB,32,8,2,{ep},1,64"


def compute_s(model: str, expert_share: float) -> float:
    layout = Layout(ep=8, dp=8, zero=1, num_micro_batches=4)
    inputs = one_case(all_models()[model], machine_of("h100x8", "bf16"), layout, 4096, Software())
    return float(step_time(inputs, Constants(experts=expert_share)).parts_s["compute"][0])


def test_what_grouping_loses_shows_on_narrow_experts() -> None:
    """Experts of 768 lose all of it, those of 14,336 less than a third."""
    narrow = compute_s("qwen3-30b-a3b", 0.5) / compute_s("qwen3-30b-a3b", 1.0)
    wide = compute_s("mixtral-8x7b", 0.5) / compute_s("mixtral-8x7b", 1.0)
    assert narrow > 1.15
    assert wide == pytest.approx(1.0 / (1.0 - 0.5 * 4096 / 14336), rel=0.05)


def runs_of(path: Path, *lines: str) -> list[dict[str, float]]:
    path.write_text("\n".join(lines) + "\n")
    return [run.columns for run in read_runs(path)[0]]


def test_experts_are_split_like_other_layers_where_nothing_else_splits_them(tmp_path: Path) -> None:
    header = f"{COLUMNS},framework,step_time_s"
    rows = [MIXTRAL.format(ep=ep) + ",Megatron-Core,10" for ep in (1, 8)]
    alone, spread = runs_of(tmp_path / "runs.csv", header, *rows)
    assert (alone["etp"], spread["etp"]) == (8.0, 1.0)
    (dense,) = runs_of(tmp_path / "dense.csv", header, rows[0].replace(",8,2,14336,H100", ",,,,H100"))
    assert dense["etp"] == 1.0


def test_selective_recomputation_of_operators_repeats_all_experts() -> None:
    """PyTorch keeps no grouped multiplication: what experts hold is held for one layer only."""
    machine, model = machine_of("b200x8", "bf16"), all_models()["qwen3-30b-a3b"]
    layout = {"dp": 8, "zero": 3, "micro_batch": 8, "num_micro_batches": 1}
    software = Software(selective_share=0.5)

    def activations(recompute: str) -> float:
        inputs = one_case(model, machine, Layout(**layout, recompute=recompute), 8192, software)  # type: ignore[arg-type]
        return float(np.ravel(memory(inputs, MemoryConstants(activations=1.0)).parts["activations"])[0])

    of_experts = 8 * (2 * 2048 + 6 * 768) * 8 * 8192  # bytes of one layer: tokens that arrive, and inner widths
    saved = activations("none") - activations("selective")
    assert 47 * of_experts < saved < 48 * of_experts + 0.6 * activations("none")
    assert activations("selective") > of_experts


def test_experts_whose_kernels_the_host_launches_are_doubted_by_a_factor_of_two_on_blackwell(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    columns = f"{COLUMNS},framework,precision,notes,step_time_s"
    silent, graphs, in_16_bits, on_hopper = (
        MIXTRAL.format(ep=8).replace("H100", gpu) + f",Megatron-Core,{precision},{notes},10"
        for gpu, precision, notes in (
            ("GB200", "FP8", ""),
            ("GB200", "FP8", "partial CUDA graphs"),
            ("GB200", "BF16", ""),
            ("H100", "FP8", ""),
        )
    )
    path.write_text("\n".join([columns, silent, graphs, in_16_bits, on_hopper]))
    runs = read_runs(path)[0]
    deviations = predict_logs(as_inputs(runs), shipped())[1]
    assert deviations[0] == pytest.approx((deviations[1] ** 2 + 0.4**2) ** 0.5)
    assert np.exp(1.645 * deviations[0]) > 2.0 > np.exp(1.645 * deviations[1])
    assert max(deviations[2:]) < 0.8 * deviations[0]


def test_experts_of_an_early_release_are_doubted_by_a_factor_of_three(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    row = MIXTRAL.format(ep=8) + ",NeMo,{source},10"
    path.write_text(
        "\n".join([f"{COLUMNS},framework,source,step_time_s", row.format(source="v25.05"), row.format(source="v25.11")])
    )
    early, late = predict_logs(as_inputs(read_runs(path)[0]), shipped())[1]
    assert early == pytest.approx((late**2 + 0.65**2) ** 0.5)
    assert np.exp(1.645 * early) > 3.0 > np.exp(1.645 * late)
