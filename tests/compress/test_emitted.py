"""What is written for a recommended variant: a launcher that a shell runs, and the same change as Python."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout.emit.compression import EXPORTED, emit_compression
from flatout.emit.write import write
from flatout.inside.compression.variants import NEED_CALL
from flatout.launch.loaded import STARTUP
from flatout.records.compression import Compression, Evaluation, LossVerdict, MaxLoss, VariantResult
from flatout.secrets import MASK

UNTOUCHED = VariantResult(name="untouched", applied_by="patch", outcome="measured")
FINAL = LossVerdict(
    outcome="non_inferior",
    method="paired_exact",
    untouched=0.9,
    variant=0.9,
    loss=0.0,
    most_loss=0.004,
    num_samples=1000,
    level=0.05,
)


def emitted(variant: VariantResult, folder: Path, *bench: str, **more: Any) -> list[Path]:
    result = Compression(
        eval_command=("python", "eval.py"),
        eval_final_command=None,
        bench_command=bench,
        metric="accuracy",
        is_higher_better=True,
        max_loss=MaxLoss(value=0.01, is_relative=True),
        untouched=UNTOUCHED,
        evaluation=Evaluation(value=0.9),
        is_repeatable=True,
        variants=(variant,),
        recommended=(variant.name,),
        **{"model": None, **more},
    )
    return [write(each, folder) for each in emit_compression(result, STARTUP)]


def recommended(name: str, **more: Any) -> VariantResult:
    return VariantResult(
        name=name, outcome="measured", is_recommended=True, final=FINAL, **{"applied_by": "patch", **more}
    )


def printed(script: Path, *command: str) -> list[str]:
    """Run the launcher with a PYTHONPATH of the user's own."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": "/mine"}
    done = subprocess.run(["sh", script, *command], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


def test_the_launcher_asks_for_the_variant_in_the_users_own_command(tmp_path: Path) -> None:
    variant = recommended(
        "int8-static without 1", kind="int8-static", skipped=("it's",), options={"calibration": "/r a.json"}
    )
    script, _ = emitted(variant, tmp_path, "A=1", "printenv", "A", "{batch}", batches=(8, 16))
    assert script.name == "int8-static_without_1.sh"
    asked, path = printed(script, "printenv", "FLATOUT_COMPRESS", "PYTHONPATH")
    assert json.loads(asked) == {"variant": "int8-static", "skip": ["it's"], "calibration": "/r a.json"}
    assert path == f"{STARTUP}:/mine"
    assert "set -- env A=1 printenv A 8" in script.read_text()
    assert "# Loss of accuracy as a share: 0, below 0.004 at 0.95, on 1000 samples" in script.read_text()


def test_a_file_takes_the_place_of_the_model(tmp_path: Path) -> None:
    variant = recommended("file-int8", applied_by="files", model_path="/out/model.onnx")
    script, module = emitted(variant, tmp_path, "echo", "--model={model}", model="mine.onnx")
    assert printed(script) == ["--model=/out/model.onnx"]
    assert "FLATOUT_COMPRESS" not in script.read_text()
    assert runpy.run_path(str(module))["MODEL"] == "/out/model.onnx"


def test_secrets_of_the_benchmark_are_named_and_not_written(tmp_path: Path) -> None:
    script, _ = emitted(recommended("bf16", kind="bf16"), tmp_path, "python", f"--token={MASK}")
    assert f"# Values that look like secrets are {MASK}" in script.read_text()


def test_the_module_makes_the_same_change(tmp_path: Path) -> None:
    """The first layer is kept, the second one is changed; the heading cannot end the docstring."""
    variant = recommended('int8-weights"""', kind="int8-weights", skipped=("0",))
    _, module = emitted(variant, tmp_path, "true")
    model = runpy.run_path(str(module))["compressed"](
        torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    )
    assert type(model[0]) is torch.nn.Linear
    assert type(model[1]) is not torch.nn.Linear


@pytest.mark.parametrize("kind", sorted(NEED_CALL))
def test_an_export_is_named_as_the_file_to_run(tmp_path: Path, kind: str) -> None:
    assert kind in EXPORTED
    _, module = emitted(recommended(kind, kind=kind, disk_path=f"{tmp_path}/model.onnx"), tmp_path, "true")
    assert runpy.run_path(str(module))["MODEL"] == f"{tmp_path}/model.onnx"


def test_nothing_is_written_for_what_is_not_recommended(tmp_path: Path) -> None:
    assert emitted(UNTOUCHED, tmp_path, "true") == []
