"""`flatout compress` as a user runs it: what is refused, and small models in two unmodified scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package
from flatout.compress.backend import UNTOUCHED_VARIANT, Variant
from flatout.compress.commands import user_command
from flatout.compress.processes import CompressionProcesses

pytestmark = pytest.mark.usefixtures("warm")

# One unit of the first layer is 3,000 times as large, and the next layer makes up for it: in int8 all others vanish.
MODEL = """
import json
import torch
from torch.nn.functional import linear
torch.set_num_threads(1)
torch.manual_seed(0)
layers = [torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)]
model, data = torch.nn.Sequential(*layers).eval(), torch.randn(800, 16)
first, _, second, _, last = layers
def logits(rows):  # without a call of the model, which would be its first one
    for layer in (first, second):
        rows = torch.relu(linear(rows, layer.weight, layer.bias))
    return linear(rows, last.weight, last.bias)
with torch.no_grad():
    first.bias[0] = 5.0
    last.bias -= logits(data).mean(0)
    labels = logits(data).argmax(1)
    first.weight[0] *= 3000
    first.bias[0] *= 3000
    second.weight[:, 0] /= 3000
"""
EVAL = (
    MODEL
    + """
with torch.no_grad():
    right = (model(data).argmax(1) == labels).int().tolist()
print(json.dumps({"accuracy": sum(right) / len(right), "samples": right}))
"""
)
BENCH = (
    MODEL
    + """
with torch.inference_mode():
    for _ in range(100_000):
        model(data[:8])
"""
)
# A file that the package `onnx` ships: a convolution from three to four channels.
ONNX_MODEL = """
import sys
import numpy as np
import onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
(given,) = session.get_inputs()
data = np.random.RandomState(0).standard_normal((25, *given.shape)).astype("float32")
def run(images):
    return session.run(None, {given.name: images})[0]
"""
ONNX_EVAL = (
    ONNX_MODEL
    + """
import json
from pathlib import Path
kept = Path(__file__).with_name("answers.npy")
found = np.array([run(images).argmax(1) for images in data]).ravel()
if not kept.exists():
    np.save(kept, found)
right = (found == np.load(kept)).astype(int).tolist()
print(json.dumps({"agreement": sum(right) / len(right), "samples": right}))
"""
)


def flatout(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flatout", "compress", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )


BASE = ["--eval", "python eval.py", "--metric", "accuracy", "--max-loss", "1%", "--bench", "python infer.py"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*BASE, "--max-loss", "no"], "`--max-loss` must be a share such as 1% or an amount above 0"),
        ([*BASE, "--eval", ""], "`--eval` must be a command, but is empty"),
        ([*BASE, "--batches", "1,8"], "`--batches` needs {batch} in `--bench`, and {batch} needs `--batches`"),
        ([*BASE, "--variants", "int9"], "`--variants` must be of"),
        ([*BASE, "--model", "nowhere"], "with `--model`, both commands need {model} where it stands"),
        ([*BASE, "--bench", "python infer.py {model}"], "a command has {model}, but `--model` is missing"),
    ],
)
def test_options_that_are_refused_before_anything_is_started(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = flatout(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {message}")
    assert not list(tmp_path.iterdir())


def test_an_evaluation_that_prints_no_metric_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "eval.py").write_text("print('loss=3')")
    done = flatout(*BASE, "--eval", f"{sys.executable} eval.py", "--out", "out", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the evaluation of the untouched model fails: `--eval` printed no `accuracy`")


def test_layers_that_cost_too_much_are_left_out_in_two_unmodified_scripts(tmp_path: Path) -> None:
    """All variants fail; the layer that does it is found by a measurement, and what is written has the files' sizes."""
    (tmp_path / "eval.py").write_text(EVAL)
    (tmp_path / "infer.py").write_text(BENCH)
    commands = ["--eval", f"{sys.executable} eval.py", "--bench", f"{sys.executable} infer.py", "--max-loss", "5%"]
    options = ["--variants", "int8-dynamic", "--trials", "4", "--out", "out", "--json"]
    done = flatout(*BASE, *commands, *options, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    whole, part = result["variants"]
    assert (whole["modules"], whole["search"]["outcome"], whole["speeds"]) == (["0", "2", "4"], "inferior", [])
    assert (part["name"], part["skipped"], part["modules"]) == ("int8-dynamic without 1", ["2"], ["0", "4"])
    assert (part["search"]["outcome"], part["search"]["num_samples"]) == ("non_inferior", 400)
    assert (part["kind"], part["num_modules"]) == ("int8-dynamic", 3)
    assert part["speeds"][0]["verdict"]["num_candidates"] == 2
    assert part["disk_bytes"] == (tmp_path / part["disk_path"]).stat().st_size
    assert part["memory_bytes"] > 1 << 20
    assert 0 < part["load_s"] < 60
    assert result["untouched"]["weight_bytes"] == 4 * (16 * 64 + 64 * 64 + 64 * 4 + 64 + 64 + 4)
    other = flatout(*BASE, *commands, *options, "--max-loss", "2%", cwd=tmp_path)
    assert other.returncode == 2
    assert other.stderr.startswith("error: out already has a result")
    before = sorted((tmp_path / "out").rglob("recording"))
    again = flatout(*BASE, *commands, *options, cwd=tmp_path)
    assert "resuming with" in again.stderr
    assert json.loads(again.stdout)["variants"] == result["variants"]
    assert sorted((tmp_path / "out").rglob("recording")) == before


def test_a_start_of_the_screening_is_one_trial_of_the_unmodified_benchmark(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(BENCH.replace("100_000", "3_000"))
    command = user_command("--bench", f"{sys.executable} {tmp_path}/infer.py")
    backend = CompressionProcesses(command, command, tmp_path / "out", metric="accuracy", mark="mark", say=print)
    changed = backend.start(Variant(name="bf16", kind="bf16"), None, 60.0, 2)
    assert changed.trial is not None, changed.problem
    assert len(changed.trial.step_s) > 5
    assert changed.load_s is not None and 0 < changed.load_s < 60
    assert changed.memory_bytes is not None
    unchanged = backend.start(Variant(name="prune-heads", kind="prune-heads"), None, 60.0, 1)
    assert (unchanged.trial, unchanged.is_applied) == (None, False)
    assert unchanged.problem.startswith("in the benchmark: ")


def test_a_file_of_onnx_that_a_package_ships(tmp_path: Path) -> None:
    """Its int8 variant stands in the place of {model}, and is held against the answers of the file."""
    import onnx

    shipped = Path(onnx.__file__).parent / "backend/test/data/pytorch-converted/test_Conv2d/model.onnx"
    (tmp_path / "eval.py").write_text(ONNX_EVAL)
    evaluation = user_command("--eval", f"{sys.executable} {tmp_path}/eval.py {{model}}")
    backend = CompressionProcesses(
        evaluation, evaluation, tmp_path / "out", metric="agreement", mark="mark", say=print, model=str(shipped)
    )
    untouched = backend.evaluate(UNTOUCHED_VARIANT, is_final=False)
    variant = backend.prepared(Variant(name="file-int8", applied_by="files"))
    found = backend.evaluate(variant, is_final=False)
    assert untouched.evaluation is not None
    assert found.evaluation is not None, found.problem
    assert (untouched.evaluation.value, untouched.evaluation.num_samples) == (
        1.0,
        1000,
    )  # of 25 x 2 images, 5 x 4 places
    assert 0.97 < found.evaluation.value < 1  # it is not the same file
    assert untouched.disk_path == str(shipped)
    assert found.disk_path == variant.model == str(tmp_path / "out/variants/file-int8/model.onnx")
    assert found.disk_bytes == Path(found.disk_path).stat().st_size != untouched.disk_bytes
