"""`flatout tune --serve` on a real server: `transformers serve` with a Llama of random weights.

    python benchmarks/serving_transformers.py [--budget 25m] [--out FILE]                        # on CPUs
    python benchmarks/serving_transformers.py --hidden 2048 --layers 28 --heads 32 --weights float16 --rates 1,8 \\
        --seed 3 --output-tokens 24 --prompt-tokens 100 --held-prompts 8 --held-tokens 8 \\
        --slo 'p99 ttft<2s, p99 tpot<200ms' --allow rounding --budget 300s --limit 400 \\
        --server 'transformers serve {model} --device cuda --dtype bfloat16' \\
        --by-hand='--continuous-batching --cb-use-cuda-graph' \\
        --folder OUT --out OUT/serving_gpu.json                                     # 1.1 B on one GPU, in 7 minutes

The server is started as a user starts it, without `--continuous-batching`: it answers one request after the other. Is
that found as the cause, and is the option adopted, with the answers unchanged? The load has a rate that such a server
can serve and one that it cannot, and goodput is that of the better one: what an untouched server loses at the high rate
does not count as a gain. The limits on the GPU are those of a reader who waits: two seconds, then five tokens a second.

With `--by-hand`, the tuned server and those with these options are then started in turn under the same load, as long as
`--limit` seconds allow. The result is the tuning's own JSON without its single trials, with the conditions: cores, and
how many of them other processes kept busy. It is written again after each start, and the tuning's files go to
`--folder`, so that a machine that is taken away leaves what was measured.
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
import time
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.kept_result import keep
from tests.serving.tiny_model import write_tiny_llama

from flatout.records.serving import ServerTrial
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
seed = {seed}
prompt_tokens = {prompt_tokens}
output_tokens = {output_tokens}
held_prompts = {held_prompts}
held_tokens = {held_tokens}
timeout_s = 90
"""
_NUMBERS = {
    "hidden": 256,
    "layers": 4,
    "heads": 4,
    "requests": 16,
    "seed": 0,
    "prompt-tokens": 40,
    "output-tokens": 8,
    "held-prompts": 4,
    "held-tokens": 12,
}
SERVER = "transformers serve {model} --device cpu --cb-num-blocks 256 --cb-max-batch-tokens 512"
SPARE_S = 15.0  # that a start by hand may take longer than the last trial


def tuned(work: Path, folder: Path, wanted: argparse.Namespace) -> dict[str, Any]:
    """Tune the server of the model in `work`, with the tuning's files in `folder`; return what `--json` prints."""
    (work / "load.toml").write_text(LOAD.format(**vars(wanted)))
    words = [sys.executable, "-m", "flatout", "tune", "--serve", wanted.server.format(model="./model")]
    words += ["--load", "load.toml", "--slo", wanted.slo, "--allow", wanted.allow]
    words += ["--budget", wanted.budget, "--out", str(folder / "tuning"), "--force", "--json"]
    finished = subprocess.run(words, cwd=work, stdout=subprocess.PIPE, check=False)
    if not finished.stdout:
        raise SystemExit(finished.returncode)
    return dict(json.loads(finished.stdout))


def started(folder: Path, wanted: argparse.Namespace, rates: list[float], command: str, index: int) -> dict[str, Any]:
    """Start the server with this command under the load of the tuning, and return what it did."""
    engine = known_engines()["transformers"]
    traced = read_load(Path("load.toml"))
    plan = ServerTrialSetup(
        engine=engine,
        traced=traced,
        limits=parse_slo(wanted.slo),
        rates_per_s=tuple(rates),
        words_per_token=wanted.words_per_token,
    )
    backend = ProcessBackend(
        parse_command(command), engine, traced.load, folder / "by_hand", mark=secrets.token_hex(8), start_limit_s=120.0
    )
    trial = asyncio.run(run_trial(backend, plan, command, (), index))
    return {"command": command, "outcome": trial.outcome, "took_s": round(trial.took_s, 1), "points": points_of(trial)}


def points_of(trial: ServerTrial) -> list[dict[str, Any]]:
    return [
        {
            "rate_per_s": point.rate_per_s,
            "goodput_per_s": point.goodput_per_s,
            "tokens_per_s": point.tokens_per_s,
            "num_good": point.num_good,
            "ttft_p99_s": point.ttft and point.ttft.p99_s,
            "tpot_p99_s": point.tpot and point.tpot.p99_s,
            "itl_p99_s": point.itl and point.itl.p99_s,
        }
        for point in trial.points
    ]


def conditions(trials: list[dict[str, Any]]) -> dict[str, Any]:
    loads = [trial["covariates"]["cores_busy_by_others"] for trial in trials]
    known = [load for load in loads if load is not None]
    return {
        "transformers": version("transformers"),
        "torch": version("torch"),
        "python": platform.python_version(),
        "cores": len(os.sched_getaffinity(0)),
        "cores_busy_by_others": round(fmean(known), 2) if known else None,
        "trial_s": [round(trial["took_s"], 1) for trial in trials],
        "start_s": [trial["start_s"] and round(trial["start_s"], 1) for trial in trials],
    }


def best(result: dict[str, Any]) -> dict[str, Any]:
    """Return each server's goodput at its best rate: the means of the tuning's trials, and the starts by hand."""
    of_tuning = {curve["arm"]: max(point["goodput_per_s"] for point in curve["points"]) for curve in result["curves"]}
    completed = [start for start in result["by_hand"] if start["points"]]
    by_hand = [[start["arm"], max(point["goodput_per_s"] for point in start["points"])] for start in completed]
    return {"in_the_tuning": of_tuning, "started_after_it": by_hand}


def compare(folder: Path, wanted: argparse.Namespace, result: dict[str, Any], until_s: float) -> None:
    """Start the servers that an expert would, and the tuned one, in turn, and keep the result after each."""
    plain = wanted.server.format(model="./model")
    launch = shlex.join([f"{name}={value}" for name, value in result["environment"].items()] + result["launch"])
    arms = [("by hand", f"{plain} {options}") for options in wanted.by_hand] + [("tuned", launch)]
    (folder / "by_hand").mkdir(exist_ok=True)
    longest_s = min(result["conditions"]["trial_s"], default=0.0)
    for index, (name, command) in enumerate([*arms, *reversed(arms)]):
        if time.monotonic() + longest_s + SPARE_S > until_s:
            print(f"not started, because --limit does not allow it: {command}", file=sys.stderr)
            continue
        start = started(folder, wanted, result["rates_per_s"], command, index)
        longest_s = max(longest_s, start["took_s"])
        result["by_hand"].append({"arm": name, **start})
        result["best_goodput_per_s"] = best(result)
        keep(result, wanted.out)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="25m")
    parser.add_argument("--limit", type=float, default=7200.0, help="seconds for the tuning and the starts after it")
    parser.add_argument("--server", default=SERVER)
    parser.add_argument("--slo", default="p99 ttft<3s, p99 itl<1s")
    parser.add_argument("--allow", default="exact")
    parser.add_argument("--rates", default="1,2", help="requests per second, with commas")
    parser.add_argument("--weights", default="float32", help="type of the weights in the file, or float16")
    for name, default in _NUMBERS.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--by-hand", action="append", default=[], help="options that an expert would set; repeatable")
    parser.add_argument("--words-per-token", type=float, default=0.2, help="of the random tokenizer, for --by-hand")
    parser.add_argument("--folder", type=Path, help="keep the tuning's files and logs there")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    until_s = time.monotonic() + wanted.limit
    wanted.out = None if wanted.out is None else wanted.out.resolve()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["HF_HUB_OFFLINE"] = "1"  # the model is a folder: the server need not look for another
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        folder = work if wanted.folder is None else wanted.folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        model = {name: getattr(wanted, name) for name in ("hidden", "layers", "heads")}
        write_tiny_llama(work / "model", **model, dtype=wanted.weights)
        result = tuned(work, folder, wanted)
        trials = result.pop("trials")
        result.pop("command")
        result |= {"model": model, "by_hand": [], "conditions": conditions(trials)}
        result["best_goodput_per_s"] = best(result)
        keep(result, wanted.out)
        os.chdir(work)
        compare(folder, wanted, result, until_s)
        os.chdir("/")
    return 0 if result["adopted"] else 1


if __name__ == "__main__":
    sys.exit(main())
