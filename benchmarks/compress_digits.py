"""`flatout compress` on a small convolutional network and a small transformer that are trained on digits first.

    python benchmarks/compress_digits.py DIGITS.csv.gz [--budget 5m] [--only NAME] [--out FILE]

DIGITS is `sklearn/datasets/data/digits.csv.gz` of scikit-learn: 1,797 rows of 64 pixels and a label. 897 of them
evaluate: every second one is held out. One thread, batch 16. The transformer is distilled into one of a quarter of its
width, too, and their speeds are compared with `flatout compare`.

`--only outliers`: the trained transformer with two hidden units of its first layer scaled by 3,000, which the next
matrix makes up for. In int8 all other units of that layer vanish, so every variant loses too much; which layers are
left out?
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.kept_result import keep

JOB = Path(__file__).with_name("compress_digits_job.py")
VARIANTS = {
    "transformer": "int8-dynamic,bf16,int4-weights,prune-heads,onnx-int8",
    "cnn": "int8-static,int8-dynamic,prune-channels,onnx",
    "outliers": "int8-dynamic,int8-static",
}
USUAL = ("transformer", "cnn")


def job(what: str, name: str, folder: Path, *more: str) -> list[str]:
    return [sys.executable, str(folder / JOB.name), what, name, str(folder), *more]


def flatout(*arguments: str) -> dict[str, Any]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "flatout", *arguments, "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def compressed(name: str, folder: Path, budget: str) -> dict[str, Any]:
    commands = [
        "--eval",
        shlex.join(job("eval", name, folder)),
        "--bench",
        shlex.join(job("infer", name, folder, "16")),
    ]
    limits = ["--metric", "accuracy", "--max-loss", "2%", "--variants", VARIANTS[name]]
    where = ["--budget", budget, "--trials", "12", "--out", str(folder / f"out-{name}")]
    return flatout("compress", *commands, *limits, *where)


def summary(result: dict[str, Any]) -> dict[str, Any]:
    rows = {}
    for variant in result["variants"]:
        verdicts = [speed["verdict"] for speed in variant["speeds"]]
        rows[variant["name"]] = {
            "outcome": variant["outcome"],
            "reason": variant["reason"],
            "modules": len(variant["modules"]),
            "skipped": variant["skipped"],
            "disk_bytes": variant["disk_bytes"],
            "memory_bytes": variant["memory_bytes"],
            "load_s": variant["load_s"],
            "search": variant["search"],
            "final": variant["final"],
            "speed": [[each["verdict"], each["speedup"], each["interval"], each["order"]] for each in verdicts],
            "refusal": variant["refusal"],
            "dominated_by": variant["dominated_by"],
        }
    kept = ("recommended", "evaluation", "num_trials", "took_s", "ended_by")
    untouched = {name: result["untouched"][name] for name in ("disk_bytes", "memory_bytes", "load_s", "weight_bytes")}
    return {**{name: result[name] for name in kept}, "untouched": untouched, "variants": rows}


def distilled(folder: Path, budget: str) -> dict[str, Any]:
    """Distil the transformer with the job's own loop, and compare both."""
    subprocess.run(job("distil", "transformer", folder), check=True)
    accuracies = {}
    for name in ("transformer", "student"):
        done = subprocess.run(job("eval", name, folder), check=True, capture_output=True, text=True)
        accuracies[name] = json.loads(done.stdout)["accuracy"]
    arms = [shlex.join(job("infer", name, folder, "16")) for name in ("transformer", "student")]
    where = ["--out", str(folder / "compare"), "--budget", budget, "--profiles", "0", "--trials", "12"]
    result = flatout("compare", "--a", arms[0], "--b", arms[1], *where)
    verdict = result["verdict"]
    sizes = {name: (folder / f"{name}.pt").stat().st_size for name in ("transformer", "student")}
    kept = {name: verdict[name] for name in ("verdict", "speedup", "interval", "order")}
    return {"accuracies": accuracies, "disk_bytes": sizes, **kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("digits", type=Path)
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--only", choices=[*VARIANTS, "distil"])
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    options = parser.parse_args()
    rows = np.loadtxt(options.digits, delimiter=",")
    result: dict[str, Any] = {"load_average": os.getloadavg(), "cores": os.cpu_count()}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(JOB, folder)  # beside other files, whose names are those of modules that onnxruntime imports
        np.savez(folder / "digits.npz", x=rows[:, :64] / 16, y=rows[:, 64])
        models = [options.only] if options.only in VARIANTS else USUAL
        for model in models if options.only != "distil" else ["transformer"]:
            subprocess.run(job("train", model, folder), check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            if options.only != "distil":
                result[model] = summary(compressed(model, folder, options.budget))
        if options.only in (None, "distil"):
            result["distilled"] = distilled(folder, options.budget)
    keep(result, options.out)


if __name__ == "__main__":
    main()
