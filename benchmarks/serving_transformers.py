"""`flatout tune --serve` on a real server: `transformers serve` with a Llama of random weights.

    python benchmarks/serving_transformers.py [--budget 25m] [--out FILE]                        # on CPUs
    python benchmarks/serving_transformers.py --hidden 2048 --layers 28 --heads 32 --rates 2,8,32 --requests 96 \\
        --output-tokens 64 --prompt-tokens 200 --slo 'p99 ttft<1s, p99 itl<100ms' --allow rounding \\
        --server 'transformers serve {model} --device cuda --dtype bfloat16'                     # 1.1 B on one GPU

The server is started as a user starts it, without `--continuous-batching`: it answers one request after the other. Is
that found as the cause, and is the option adopted, with the answers unchanged? The result is the tuning's own JSON
without its single trials, with the conditions: cores, and how many of them other processes kept busy.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kept_result import keep
from tests.serving.tiny_model import write_tiny_llama

LOAD = """
rates = [{rates}]
requests = {requests}
prompt_tokens = {prompt_tokens}
output_tokens = {output_tokens}
held_prompts = 4
held_tokens = 12
timeout_s = 90
"""
_NUMBERS = {"hidden": 256, "layers": 4, "heads": 4, "requests": 16, "prompt-tokens": 40, "output-tokens": 8}
SERVER = "transformers serve {model} --device cpu --cb-num-blocks 256 --cb-max-batch-tokens 512"


def tuned(folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """Tune the server in this folder, and return what `--json` prints."""
    write_tiny_llama(folder / "model", hidden=wanted.hidden, layers=wanted.layers, heads=wanted.heads)
    (folder / "load.toml").write_text(LOAD.format(**vars(wanted)))
    words = [sys.executable, "-m", "flatout", "tune", "--serve", wanted.server.format(model="./model")]
    words += ["--load", "load.toml", "--slo", wanted.slo, "--allow", wanted.allow]
    words += ["--budget", wanted.budget, "--out", "out", "--json"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    finished = subprocess.run(words, cwd=folder, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, check=False)
    if not finished.stdout:
        raise SystemExit(finished.returncode)
    return dict(json.loads(finished.stdout))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="25m")
    parser.add_argument("--server", default=SERVER)
    parser.add_argument("--slo", default="p99 ttft<3s, p99 itl<1s")
    parser.add_argument("--allow", default="exact")
    parser.add_argument("--rates", default="1,2", help="requests per second, with commas")
    for name, default in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = tuned(Path(folder), arguments)
    trials = result.pop("trials")
    result.pop("command")
    loads = [trial["covariates"]["cores_busy_by_others"] for trial in trials]
    known = [load for load in loads if load is not None]
    result["conditions"] = {
        "transformers": version("transformers"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_busy_by_others": round(fmean(known), 2) if known else None,
        "trial_s": [round(trial["took_s"], 1) for trial in trials],
        "start_s": [trial["start_s"] and round(trial["start_s"], 1) for trial in trials],
    }
    keep(result, arguments.out)
    return 0 if result["adopted"] else 1


if __name__ == "__main__":
    sys.exit(main())
