"""How often the gate of `flatout compare` fails without cause, and finds a slowdown as often as it says.

    python benchmarks/compare_gate.py simulated [--comparisons 20] [--jobs 1] [--out results.json]
    python benchmarks/compare_gate.py real [--comparisons 20] [--jobs 1] [--out results.json]
    python benchmarks/compare_gate.py causes [--jobs 1] [--out results.json]

`simulated` runs the comparison's own loop on trials of identical arms (A/A) in ten scenarios of noise, and on a B that
is 5 % slower, with a gate of 3 %: 20 comparisons of each in each scenario. The power is what the comparison states
after its first trials. `real` compares a job of one gloo rank with itself. `causes` plants four causes in that job
(`compare_job.py`), and asks which part the comparison names. Seeds are fixed. `simulated` takes minutes on one core;
the others take an hour on a busy machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from multiprocessing.pool import Pool
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
SOURCE = Path(__file__).resolve().parents[1] / "src"
JOB = Path(__file__).resolve().with_name("compare_job.py")
# Cause -> options of both jobs, of B alone, the parts that name it, and the call that shows it.
CAUSES: dict[str, tuple[list[str], list[str], set[str], str | None]] = {
    "loader sleep": ([], ["--sleep", "0.02"], {"data_loading"}, None),
    "extra .item()": ([], ["--items", "10000"], {"host_launch", "compute", "host_sync"}, "aten::item"),
    "bucket size": (["--depth", "40"], ["--bucket-mb", "0.02"], {"transfer", "wait"}, "gloo:all_reduce"),
    "threads": (["--batch", "2048", "--threads", "4"], ["--threads", "1"], {"compute"}, None),
}


def compared(slowdown: float, noise: float, shape: Shape, seed: int) -> Compared:
    arms = SimulatedArms(slowdown, noise=noise, shape=shape, seed=seed)
    options = CompareOptions(gate=GATE, budget_s=1e9, num_profiles=0)
    return compare(arms, options, lambda line: None)


def simulated(num_comparisons: int, pool: Pool) -> list[dict[str, Any]]:
    scenarios: list[tuple[float, Shape]] = [(noise, "white") for noise in NOISES] + [(0.01, shape) for shape in SHAPES]
    seeds = range(num_comparisons)
    rows = []
    for noise, shape in scenarios:
        same = pool.starmap(outcome, [(0.0, noise, shape, seed) for seed in seeds])
        slower = pool.starmap(outcome, [(SLOWDOWN, noise, shape, 10_000 + seed) for seed in seeds])
        rows.append({"noise": noise, "shape": shape, "same": summary(same), f"slower by {SLOWDOWN}": summary(slower)})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def outcome(slowdown: float, noise: float, shape: Shape, seed: int) -> dict[str, Any]:
    """Return the essentials of one simulated comparison."""
    result = compared(slowdown, noise, shape, seed)
    assert result.judged.gate is not None
    return {
        "gate": result.judged.gate.outcome,
        "verdict": result.judged.verdict.verdict,
        "trials": len(result.evidence.trials),
        "stated": result.power.num_trials if result.power is not None else None,
    }


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    trials = sorted(result["trials"] for result in results)
    stated = [result for result in results if result["stated"] is not None]
    found = [result for result in stated if result["gate"] == "failed" and result["trials"] <= result["stated"]]
    return {
        "gate": dict(Counter(result["gate"] for result in results)),
        "verdicts": dict(Counter(result["verdict"] for result in results)),
        "median_trials": trials[len(trials) // 2],
        "power_stated": len(stated),
        "found_within_the_stated_trials": len(found),
    }


def real(num_comparisons: int, pool: Pool) -> list[dict[str, Any]]:
    options = ["--profiles", "0", "--trials", "15"]
    return _printed(pool.starmap(_compare_jobs, [(1, [], [], options)] * num_comparisons))


def causes(pool: Pool) -> list[dict[str, Any]]:
    options = ["--profiles", "3", "--trials", "11"]
    jobs = [(2, both, [*both, *of_b], options) for both, of_b, _, _ in CAUSES.values()]
    rows = []
    for (cause, (_, _, parts, call)), row in zip(CAUSES.items(), pool.starmap(_compare_jobs, jobs), strict=True):
        is_right_call = call is None or call in row.get("calls", ())
        rows.append({"planted": cause, "right_part": row.get("cause") in parts, "right_call": is_right_call, **row})
    return _printed(rows)


def _printed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for row in rows:
        print(json.dumps(row), flush=True)
    return rows


def _compare_jobs(num_ranks: int, a: list[str], b: list[str], options: list[str]) -> dict[str, Any]:
    """Compare two variants of the job, and return the essentials of the result."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
    launch = [sys.executable, *(torchrun if num_ranks > 1 else []), str(JOB)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        words = ["--a", " ".join([*launch, *a]), "--b", " ".join([*launch, *b]), "--gate", "3%", "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "flatout", "compare", *words, *options, "--out", f"{folder}/out"],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE)},
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
    parser.add_argument("--comparisons", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1, help="comparisons at the same time")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with multiprocessing.Pool(arguments.jobs) as pool:
        if arguments.what == "simulated":
            rows = simulated(arguments.comparisons, pool)
        elif arguments.what == "real":
            rows = real(arguments.comparisons, pool)
        else:
            rows = causes(pool)
    if arguments.out is not None:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        arguments.out.write_text(
            json.dumps({"machine": machine, "what": arguments.what, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
