"""How often the gate of `flatout compare` fails without cause, and finds a slowdown as often as it says.

    python benchmarks/compare_gate.py simulated [--comparisons 20] [--out results.json]
    python benchmarks/compare_gate.py real [--comparisons 20] [--out results.json]
    python benchmarks/compare_gate.py causes [--out results.json]

`simulated` runs the comparison's own loop on trials of identical arms (A/A) in ten scenarios of noise, and on a B that
is 5 % slower, with a gate of 3 %: 20 comparisons of each in each scenario. The power is what the comparison states
after its first trials. `real` compares a job of two gloo ranks with itself. `causes` plants four causes in that job
(`compare_job.py`), and asks which part the comparison names. Seeds are fixed. `simulated` takes minutes on one core;
the others take an hour on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.compare.simulated import Shape, SimulatedArms

from flatout.compare.loop import Compared, compare
from flatout.compare.options import CompareOptions

GATE = 0.03
SLOWDOWN = 0.05
NOISES = (0.003, 0.01, 0.03, 0.1)
SHAPES: tuple[Shape, ...] = ("drift", "warming", "two states", "spikes", "walk", "noisier B")
JOB = Path(__file__).with_name("compare_job.py")
# Cause -> options of B's job, the parts that name it, and the call that shows it.
CAUSES: dict[str, tuple[list[str], set[str], str | None]] = {
    "loader sleep": (["--sleep", "0.02"], {"data_loading"}, None),
    "extra .item()": (["--items", "20000"], {"host_launch", "compute", "host_sync"}, "aten::item"),
    "bucket size": (["--bucket-mb", "0.02"], {"transfer", "wait", "compute", "host_launch"}, "gloo:all_reduce"),
    "threads": (["--threads", "1"], {"compute"}, None),
}


def compared(slowdown: float, noise: float, shape: Shape, seed: int) -> Compared:
    arms = SimulatedArms(slowdown, noise=noise, shape=shape, seed=seed)
    options = CompareOptions(gate=GATE, budget_s=1e9, num_profiles=0)
    return compare(arms, options, lambda line: None)


def simulated(num_comparisons: int) -> list[dict[str, Any]]:
    scenarios: list[tuple[float, Shape]] = [(noise, "white") for noise in NOISES] + [(0.01, shape) for shape in SHAPES]
    rows = []
    for noise, shape in scenarios:
        same = [compared(0.0, noise, shape, seed) for seed in range(num_comparisons)]
        slower = [compared(SLOWDOWN, noise, shape, 10_000 + seed) for seed in range(num_comparisons)]
        rows.append({"noise": noise, "shape": shape, "same": summary(same), f"slower by {SLOWDOWN}": summary(slower)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def summary(results: list[Compared]) -> dict[str, Any]:
    outcomes = Counter(result.judged.gate.outcome for result in results if result.judged.gate is not None)
    verdicts = Counter(result.judged.verdict.verdict for result in results)
    trials = sorted(len(result.evidence.trials) for result in results)
    stated = [result.power.num_trials for result in results if result.power is not None]
    found_in_stated = [
        result.judged.gate.outcome == "failed" and len(result.evidence.trials) <= needed
        for result, needed in zip(results, stated, strict=True)
        if needed is not None and result.judged.gate is not None
    ]
    return {
        "gate": dict(outcomes),
        "verdicts": dict(verdicts),
        "median_trials": trials[len(trials) // 2],
        "power_stated": len(found_in_stated),
        "found_within_the_stated_trials": sum(found_in_stated),
    }


def real(num_comparisons: int) -> list[dict[str, Any]]:
    rows = []
    for number in range(num_comparisons):
        rows.append({"comparison": number, **_compare_jobs([], [], "--profiles", "0", "--trials", "11")})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def causes() -> list[dict[str, Any]]:
    rows = []
    for cause, (options, parts, call) in CAUSES.items():
        base = ["--threads", "2"] if cause == "threads" else []
        row = _compare_jobs(base, options, "--profiles", "2", "--trials", "8")
        rows.append({"planted": cause, "right_part": row["cause"] in parts, "call": call, **row})
        rows[-1]["right_call"] = call is None or call in row["calls"]
        print(json.dumps(rows[-1]), flush=True)
    return rows


def _compare_jobs(a: list[str], b: list[str], *options: str) -> dict[str, Any]:
    """Compare two variants of the job, and return the essentials of the result."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    launch = [sys.executable, *torchrun, str(JOB)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words = ["--a", " ".join([*launch, *a]), "--b", " ".join([*launch, *b]), "--gate", "3%", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "flatout", "compare", *words, *options, "--out", f"{folder}/out"],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    if not done.stdout:
        return {"exit": done.returncode, "problem": done.stderr[-2000:]}
    result = json.loads(done.stdout)
    return {
        "exit": done.returncode,
        "gate": result["gate"]["outcome"],
        "slowdown": result["gate"]["slowdown"],
        "verdict": result["verdict"]["verdict"],
        "interval": result["verdict"]["interval"],
        "trials": result["num_trials"],
        "run_sd": result["power"] and result["power"]["run_sd"],
        "cause": result["cause"],
        "parts": [[part["part"], part["source"], part["change_s"], part["is_shown"]] for part in result["parts"][:8]],
        "calls": {call["name"]: [call["a_calls"], call["b_calls"]] for call in result["calls"]},
        "environment": [[row["name"], row["a"], row["b"]] for row in result["environment"]],
        "took_s": round(time.monotonic() - began),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulated", "real", "causes"))
    parser.add_argument("--comparisons", type=int)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "simulated":
        rows = simulated(arguments.comparisons or 20)
    elif arguments.what == "real":
        rows = real(arguments.comparisons or 20)
    else:
        rows = causes()
    if arguments.out is not None:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        arguments.out.write_text(
            json.dumps({"machine": machine, "what": arguments.what, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
