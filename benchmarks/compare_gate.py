"""How often the gate of `flatout compare` fails without cause, and finds a slowdown as often as it says.

    python benchmarks/compare_gate.py simulated --out FILE [--comparisons 20] [--seconds 800]
    python benchmarks/compare_gate.py real --out FILE [--comparisons 20] [--seconds 800]
    python benchmarks/compare_gate.py causes --out FILE [--seconds 800]

`simulated` runs the comparison's own loop on trials of identical arms (A/A) in ten scenarios of noise, and on a B that
is 5 % slower, with a gate of 3 %: `--comparisons` of each in each scenario. The power is what the comparison states
after its first trials. `real` compares a job of two gloo ranks with itself, with a budget of 40 s each. `causes` plants
four causes in that job (`compare_job.py`), and asks which part the comparison names. Seeds are fixed.

Each comparison is a line of FILE as soon as it ends: a run that stops after `--seconds` goes on from there the next
time, and prints the summary of all lines.
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
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.compare.simulated import Shape, SimulatedArms

from flatout.compare.loop import compare
from flatout.compare.options import CompareOptions

GATE = 0.03
SLOWDOWN = 0.05
NOISES = (0.003, 0.01, 0.03, 0.1)
SHAPES: tuple[Shape, ...] = ("drift", "warming", "two states", "spikes", "walk", "noisier B")
SOURCE = Path(__file__).resolve().parents[1] / "src"
JOB = Path(__file__).resolve().with_name("compare_job.py")
# Cause -> options of both jobs, of B alone, the parts that name it, and the call or the fact that shows it.
CAUSES: dict[str, tuple[list[str], list[str], set[str], str | None]] = {
    "loader sleep": ([], ["--sleep", "0.02"], {"data_loading"}, None),
    "extra .item()": ([], ["--items", "10000"], {"host_launch", "compute", "host_sync"}, "aten::item"),
    "bucket size": (["--depth", "40"], ["--bucket-mb", "0.02"], {"transfer", "wait"}, "gloo:all_reduce"),
    "threads": (["--batch", "2048", "--threads", "4"], ["--threads", "1"], {"compute"}, "threads per rank"),
}
Row = dict[str, Any]
Run = tuple[str, Callable[[], Row]]  # the name of a comparison, and what runs it


def simulated_runs(num_comparisons: int) -> Iterator[Run]:
    """Yield the comparisons, a few of every scenario first, so that an early end has some of each."""
    scenarios: list[tuple[float, Shape]] = [(noise, "white") for noise in NOISES] + [(0.01, shape) for shape in SHAPES]
    for seed in range(num_comparisons):
        for noise, shape in scenarios:
            scenario = f"{shape} {noise:g}"
            yield f"same, {scenario}, {seed}", partial(outcome, 0.0, noise, shape, seed)
            yield f"slower, {scenario}, {seed}", partial(outcome, SLOWDOWN, noise, shape, 10_000 + seed)


def outcome(slowdown: float, noise: float, shape: Shape, seed: int) -> Row:
    """Return the essentials of one simulated comparison."""
    arms = SimulatedArms(slowdown, noise=noise, shape=shape, seed=seed)
    result = compare(arms, CompareOptions(gate=GATE, budget_s=1e9, num_profiles=0), lambda line: None)
    assert result.judged.gate is not None
    return {
        "gate": result.judged.gate.outcome,
        "verdict": result.judged.verdict.verdict,
        "trials": len(result.evidence.trials),
        "stated": result.power.num_trials if result.power is not None else None,
        "run_sd": result.power.run_sd if result.power is not None else None,
        "ended_by": result.ended_by,
    }


def simulated_summary(rows: dict[str, Row]) -> Row:
    """Return the shares over all scenarios, and for each."""
    by_scenario: dict[str, list[Row]] = {}
    for name, row in rows.items():
        what, scenario, _ = name.split(", ")
        by_scenario.setdefault(f"{what}, {scenario}", []).append(row)
        by_scenario.setdefault(f"{what}, all", []).append(row)
    return {scenario: shares(of_scenario) for scenario, of_scenario in sorted(by_scenario.items())}


def shares(rows: list[Row]) -> Row:
    trials = sorted(row["trials"] for row in rows)
    stated = [row for row in rows if row["stated"] is not None]
    found = [row for row in stated if row["gate"] == "failed" and row["trials"] <= row["stated"]]
    return {
        "comparisons": len(rows),
        "gate": dict(Counter(row["gate"] for row in rows)),
        "verdicts": dict(Counter(row["verdict"] for row in rows)),
        "median_trials": trials[len(trials) // 2],
        "power_stated": len(stated),
        "found_within_the_stated_trials": len(found),
    }


def real_runs(num_comparisons: int) -> Iterator[Run]:
    options = ["--profiles", "0", "--budget", "40s"]
    for number in range(num_comparisons):
        yield f"same, {number}", partial(compare_jobs, [], [], options)


def real_summary(rows: dict[str, Row]) -> Row:
    return {
        "comparisons": len(rows),
        "gate": dict(Counter(str(row.get("gate")) for row in rows.values())),
        "verdicts": dict(Counter(str(row.get("verdict")) for row in rows.values())),
        "failed_gates": sum(row["exit"] == 1 for row in rows.values()),
        "median_trials": sorted(row.get("trials", 0) for row in rows.values())[len(rows) // 2],
    }


def cause_runs() -> Iterator[Run]:
    options = ["--profiles", "2", "--budget", "240s"]
    for cause, (of_both, of_b, _, _) in CAUSES.items():
        yield cause, partial(compare_jobs, of_both, [*of_both, *of_b], options)


def causes_summary(rows: dict[str, Row]) -> Row:
    summary = {}
    for cause, row in rows.items():
        _, _, parts, evidence = CAUSES[cause]
        differences = {*row.get("calls", ()), *(difference[0] for difference in row.get("environment", ()))}
        summary[cause] = {
            "named": row.get("cause"),
            "is_right_part": row.get("cause") in parts,
            "is_shown_by": evidence if evidence in differences else None,
            "verdict": row.get("verdict"),
        }
    return summary


def compare_jobs(a: list[str], b: list[str], options: list[str]) -> Row:
    """Compare two variants of the job on two ranks, and return the essentials of the result."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
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
        "profiles": result["num_profiles"],
        "run_sd": result["power"] and result["power"]["run_sd"],
        "cause": result["cause"],
        "parts": [[part["part"], part["source"], part["change_s"], part["is_shown"]] for part in result["parts"][:12]],
        "calls": {call["name"]: [call["a_calls"], call["b_calls"]] for call in result["calls"]},
        "environment": [[row["name"], row["a"], row["b"]] for row in result["environment"]],
        "took_s": round(time.monotonic() - began),
    }


def kept_rows(path: Path) -> dict[str, Row]:
    """Return the comparisons that earlier runs have written."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {row.pop("name"): row for row in map(json.loads, lines) if "name" in row}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("simulated", "real", "causes"))
    parser.add_argument("--comparisons", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=800.0, help="no comparison is started later")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    runs = {
        "simulated": partial(simulated_runs, arguments.comparisons),
        "real": partial(real_runs, arguments.comparisons),
        "causes": cause_runs,
    }[arguments.what]()
    summary_of = {"simulated": simulated_summary, "real": real_summary, "causes": causes_summary}[arguments.what]
    rows = kept_rows(arguments.out)
    if not rows:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        arguments.out.write_text(json.dumps({"what": arguments.what, "machine": machine}) + "\n")
    began = time.monotonic()
    for name, run in runs:
        if name in rows:
            continue
        if time.monotonic() - began > arguments.seconds:
            print("stopped: the same command goes on", flush=True)
            break
        rows[name] = run()
        with arguments.out.open("a") as file:
            file.write(json.dumps({"name": name, **rows[name]}) + "\n")
    print(json.dumps(summary_of(rows), indent=1))


if __name__ == "__main__":
    main()
