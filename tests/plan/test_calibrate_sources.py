"""Measured ceilings and recordings in place of a CSV."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.plan.test_search import setting_of

from flatout.errors import InputError
from flatout.plan.ceilings import is_ceilings, with_ceilings
from flatout.plan.clusters import cluster
from flatout.plan.constants import from_logs
from flatout.plan.inputs import machine_columns
from flatout.plan.model_names import workload
from flatout.plan.search import plan
from flatout.plan.shipped import shipped
from flatout.plan_pipeline.calibration import calibrated
from flatout.records.plan import Software


def ceilings(path: Path, *measurements: dict[str, Any]) -> Path:
    envelope = {"schema": "flatout/ceilings", "version": 1, "tool_version": "0.1.0", "command": ["flatout", "bench"]}
    path.write_text(json.dumps(envelope | {"host": "a", "measurements": measurements}))
    return path


MATMUL = {"name": "matmul", "value": 700e12, "unit": "FLOP/s", "spread": 1e12, "dtype": "bf16", "shape": [4096] * 3}
NODE = {"name": "all_reduce", "value": 300e9, "unit": "B/s", "spread": 1e9, "group": "node", "size": 1 << 30}
SMALL = {"name": "all_reduce", "value": 1e9, "unit": "B/s", "spread": 1e9, "group": "node", "size": 1 << 10}
ACROSS = {"name": "reduce_scatter", "value": 20e9, "unit": "B/s", "spread": 1e9, "group": "across", "size": 1 << 30}


def test_measured_rates_are_what_the_model_computes_with(tmp_path: Path) -> None:
    path = ceilings(tmp_path / "bench.json", MATMUL, {**MATMUL, "value": 500e12}, NODE, SMALL, ACROSS)
    assert is_ceilings(path)
    found, shares = cluster("h100x64")
    constants = from_logs(shipped().logs)
    measured, new_shares = with_ceilings(found, shares, path, constants)
    columns = machine_columns(measured, "bf16", new_shares)
    assert columns["matmul_peak"] == pytest.approx(700e12)
    assert columns["link"] * constants.link == pytest.approx(300e9)
    assert columns["nic"] * constants.nic == pytest.approx(20e9)
    assert columns["memory_rate"] == found.memory_bytes_per_s  # not measured: the data sheet's
    assert measured.origin == "measured"


def test_a_toml_names_its_ceilings(tmp_path: Path) -> None:
    ceilings(tmp_path / "bench.json", MATMUL)
    path = tmp_path / "ours.toml"
    path.write_text('gpu = "h100"\nnum_gpus = 16\nceilings = "bench.json"\n')
    assert cluster(str(path))[1]["bf16"] == pytest.approx(700 / 989.5)


def test_slower_products_make_a_slower_plan(tmp_path: Path) -> None:
    context = setting_of("llama3-8b", "h100x16")
    slow = calibrated(context, ceilings(tmp_path / "bench.json", {**MATMUL, "value": 400e12}), (), print)
    assert plan(slow).layouts[0].step_time_s > 1.3 * plan(context).layouts[0].step_time_s


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"schema": "flatout/ceilings", "measurements": [{"name": "storage", "value": 1.0}]}', "but has none"),
        ('{"schema": "flatout/ceilings"', "holds no ceilings"),
        ('{"measurements": [], "schema": "flatout/ceilings2"}', "must have schema"),
    ],
)
def test_ceilings_of_no_use_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(text)
    found, shares = cluster("h100x8")
    with pytest.raises(InputError, match=message):
        with_ceilings(found, shares, path, from_logs(shipped().logs))


def test_a_folder_that_is_no_recording_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a recording"):
        calibrated(setting_of("llama3-8b", "h100x16"), tmp_path, (), print)


def recorded(monkeypatch: pytest.MonkeyPatch, step_s: float | None, ranks: int) -> None:
    """A recording of so many ranks, as `flatout profile` would have left it."""
    from types import SimpleNamespace

    measured = SimpleNamespace(step_s=step_s, peak_memory_bytes=None, reasons={"step_s": "step times were not stable"})
    recording = SimpleNamespace(measured=measured, ranks=(None,) * ranks, missing_ranks=())
    monkeypatch.setattr("flatout.plan_pipeline.calibration.is_recording", lambda path: True)
    monkeypatch.setattr("flatout.plan_pipeline.calibration.read_recording", lambda path: recording)


FIXED = ("tp=2", "sp=on", "pp=1", "cp=1", "zero=1", "shard=0", "micro_batch=1", "recompute=none", "schedule=1f1b")


def test_a_recording_moves_the_plan_to_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    context = setting_of("llama3-8b", "h100x16")
    before = plan(context, fixed=FIXED).layouts[0].step_time_s
    recorded(monkeypatch, 1.3 * before, 16)
    corrected = plan(calibrated(context, tmp_path, FIXED, print), fixed=FIXED)
    assert 1.1 * before < corrected.layouts[0].step_time_s < 1.3 * before
    assert corrected.calibrated_with == 1


def test_the_log_of_a_training_moves_the_plan_as_a_recording_does(tmp_path: Path) -> None:
    context = setting_of("llama3-8b", "h100x16")
    before = plan(context, fixed=FIXED).layouts[0].step_time_s
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"steps: {step} loss: 2.3 iter time (s): {1.3 * before:.6f}" for step in range(9)))
    notes: list[str] = []
    corrected = plan(calibrated(context, log, FIXED, notes.append), fixed=FIXED)
    assert 1.1 * before < corrected.layouts[0].step_time_s < 1.3 * before
    assert corrected.calibrated_with == 1
    assert "a log of DeepSpeed names neither" in notes[0]


@pytest.mark.parametrize(
    ("step_s", "ranks", "fixed", "message"),
    [
        (None, 16, FIXED, "has no step time: step times were not stable"),
        (1.0, 8, FIXED, "is of 8 ranks and h100x16 has 16 GPUs"),
        (1.0, 16, FIXED[:3], "must name the one layout of the training"),
    ],
)
def test_a_recording_that_does_not_fit_is_one_line(
    step_s: float | None,
    ranks: int,
    fixed: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    recorded(monkeypatch, step_s, ranks)
    with pytest.raises(InputError, match=message) as error:
        calibrated(setting_of("llama3-8b", "h100x16"), tmp_path, fixed, print)
    assert error.value.hint


def test_a_plan_is_for_the_software_of_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(
        "layers,hidden,heads,kv_heads,ffn,vocab,seq_len,gpu,num_gpus,tp,pp,micro_batch,global_batch,step_time_s,framework\n"
        + "32,4096,32,8,14336,128256,2048,H100,16,1,1,2,64,0.9,torchtitan FSDP2\n" * 3
    )
    context = setting_of("llama3-8b", "h100x16")
    assert context.software == Software()
    assert calibrated(context, path, (), print).software.is_eager


def test_a_real_recording_is_followed_to_its_one_layout_by_the_hints(tmp_path: Path) -> None:
    """nanoGPT on two H200: what a hint names may be given as it stands, and the plan moves to what was measured."""
    with tarfile.open(Path(__file__).parents[1] / "profile" / "golden" / "nanogpt_ddp_2xh200.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    (recording,) = tmp_path.iterdir()
    context = setting_of("llama3-8b", "h200x2", 24, 256)
    model = workload("layers=12,hidden=768,heads=12,vocab=50304,gelu,tied")
    context = replace(context, spec=replace(context.spec, workload=model))
    fixed = ["zero=0", "micro_batch=12"]
    for _ in range(10):
        try:
            found = calibrated(context, recording, fixed, print)
            break
        except InputError as error:
            fixed.append(str(error.hint).rpartition("--fix ")[2])
    measured_s = 0.0302  # of its 20 steps before the trace, as `flatout diagnose` tells
    before, after = (plan(one, fixed=tuple(fixed)).layouts[0].step_time_s for one in (context, found))
    assert "recompute=none" in fixed
    assert abs(after - measured_s) < abs(before - measured_s)
