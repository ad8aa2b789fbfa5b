"""`flatout compress` as a user runs it: what is refused, and a small model in two unmodified scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import flatout as package

pytestmark = pytest.mark.usefixtures("warm")

MODEL = """
import json
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)).eval()
data = torch.randn(800, 16)
"""
EVAL = (
    MODEL
    + """
with torch.no_grad():
    right = (model(data).norm(dim=1) > 0).int().tolist()
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


def test_a_model_in_two_unmodified_scripts(tmp_path: Path) -> None:
    """One variant is applied and judged; what is written has the sizes of the files."""
    (tmp_path / "eval.py").write_text(EVAL)
    (tmp_path / "infer.py").write_text(BENCH)
    commands = ["--eval", f"{sys.executable} eval.py", "--bench", f"{sys.executable} infer.py"]
    options = ["--variants", "int8-dynamic", "--trials", "4", "--out", "out", "--json"]
    done = flatout(*BASE, *commands, *options, cwd=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    (variant,) = result["variants"]
    assert (variant["outcome"], variant["modules"], variant["num_modules"]) == ("measured", ["0", "2"], 2)
    assert (variant["search"]["outcome"], variant["search"]["num_samples"]) == ("non_inferior", 400)
    assert variant["speeds"][0]["verdict"]["num_candidates"] == 2
    assert variant["disk_bytes"] == (tmp_path / variant["disk_path"]).stat().st_size
    assert variant["memory_bytes"] > 1 << 20
    assert 0 < variant["load_s"] < 60
    assert result["untouched"]["weight_bytes"] == 4 * (16 * 64 + 64 + 64 * 4 + 4)
    assert result["ended_by"] == "all_tried"
    other = flatout(*BASE, *commands, *options, "--max-loss", "2%", cwd=tmp_path)
    assert other.returncode == 2
    assert other.stderr.startswith("error: out already has a result")
    before = sorted((tmp_path / "out").rglob("recording"))
    again = flatout(*BASE, *commands, *options, cwd=tmp_path)
    assert "resuming with" in again.stderr
    resumed = json.loads(again.stdout)
    assert resumed["variants"] == result["variants"]
    assert sorted((tmp_path / "out").rglob("recording")) == before
