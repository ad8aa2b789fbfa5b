"""`flatout tune --serve` on a real server: `transformers serve` with a Llama of random weights.

    python benchmarks/serving_transformers.py [--budget 25m] [--out FILE]                        # on CPUs
    python benchmarks/serving_transformers.py --hidden 2048 --layers 28 --heads 32 --rates 8 --requests 16 \\
        --output-tokens 24 --prompt-tokens 100 --slo 'p99 ttft<1s, p99 itl<100ms' --allow rounding --budget 6m \\
        --server 'transformers serve {model} --device cuda --dtype bfloat16' \\
        --by-hand='--continuous-batching --cb-use-cuda-graph'                       # 1.1 B on one GPU, in 8 minutes

The server is started as a user starts it, without `--continuous-batching`: it answers one request after the other. Is
that found as the cause, and is the option adopted, with the answers unchanged? With `--by-hand`, the tuned server and
one with these options are then started in turn under the same load. The result is the tuning's own JSON without its
single trials, with the conditions: cores, and how many of them other processes kept busy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import secrets
import shlex
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

from flatout.serving.engine import known_engines
from flatout.serving.load import read_load
from flatout.serving.processes import ProcessBackend
from flatout.serving.slo import parse_slo
from flatout.serving.trial import ServerTrialSetup, run_trial
from flatout.serving.words import parse_command

LOAD = """
model = "./model"
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


def beside(folder: Path, wanted: argparse.Namespace, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Start the tuned server and the one that was tuned by hand in turn, twice each, under the load of the tuning."""
    plain = wanted.server.format(model="./model")
    commands = {"tuned": shlex.join(result["launch"]), "by hand": f"{plain} {wanted.by_hand}"}
    engine = known_engines()["transformers"]
    traced = read_load(folder / "load.toml")
    plan = ServerTrialSetup(
        engine=engine,
        traced=traced,
        limits=parse_slo(wanted.slo),
        rates_per_s=tuple(result["rates_per_s"]),
        words_per_token=wanted.words_per_token,
    )
    shown = []
    for index, name in enumerate(("tuned", "by hand", "by hand", "tuned")):
        command = parse_command(commands[name])
        backend = ProcessBackend(command, engine, traced.load, folder, mark=secrets.token_hex(8), start_limit_s=120.0)
        trial = asyncio.run(run_trial(backend, plan, name, (), index))
        points = [
            {
                "rate_per_s": point.rate_per_s,
                "goodput_per_s": point.goodput_per_s,
                "tokens_per_s": point.tokens_per_s,
                "ttft_p99_s": point.ttft and point.ttft.p99_s,
                "itl_p99_s": point.itl and point.itl.p99_s,
            }
            for point in trial.points
        ]
        shown.append({"arm": name, "command": commands[name], "outcome": trial.outcome, "points": points})
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="25m")
    parser.add_argument("--server", default=SERVER)
    parser.add_argument("--slo", default="p99 ttft<3s, p99 itl<1s")
    parser.add_argument("--allow", default="exact")
    parser.add_argument("--rates", default="1,2", help="requests per second, with commas")
    for name, default in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--by-hand", help="options of the server that an expert would set")
    parser.add_argument("--words-per-token", type=float, default=0.2, help="of the random tokenizer, for --by-hand")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = None if arguments.out is None else arguments.out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        result = tuned(Path(folder), arguments)
        os.chdir(folder)
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        by_hand = beside(Path(folder), arguments, result) if arguments.by_hand else []
    trials = result.pop("trials")
    result.pop("command")
    loads = [trial["covariates"]["cores_busy_by_others"] for trial in trials]
    known = [load for load in loads if load is not None]
    result["by_hand"] = by_hand
    result["conditions"] = {
        "transformers": version("transformers"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_busy_by_others": round(fmean(known), 2) if known else None,
        "trial_s": [round(trial["took_s"], 1) for trial in trials],
        "start_s": [trial["start_s"] and round(trial["start_s"], 1) for trial in trials],
    }
    keep(result, out)
    return 0 if result["adopted"] else 1


if __name__ == "__main__":
    sys.exit(main())
