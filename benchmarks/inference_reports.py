"""What `flatout profile` and `flatout tune` say of scripts that only infer, rebuilt from public reports.

    python benchmarks/inference_reports.py [--budget 160s] [--only JOB...] [--out FILE]

In: the jobs of `inference_jobs.py`. Out: for each, the findings of a profile with their costs, the verdict of a tuning
with `--allow rounding`, and the load of the machine at its start. Other processes on the machine change both: the
findings say how many cores they keep busy. The pool is profiled only: calls on several threads at once are not tried.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Job -> its calls while it is profiled, and the findings of which one is expected.
CALLS = {
    "no-kv-cache": 300,
    "onnx": 2000,
    "preprocessing": 60,
    "short-operators": 250,
    "one-thread": 150,
    "linear": 200,
    "pool": 4000,
}
EXPECTED = {
    "short-operators": ["thread-oversubscription", "eager-mode"],
    "preprocessing": ["preprocessing"],
    "no-kv-cache": ["no-kv-cache"],
    "one-thread": ["idle-cores"],
    "pool": ["thread-oversubscription"],
    "linear": [],
    "onnx": ["thread-oversubscription"],
}
UNTUNED = ("pool",)


def flatout(*arguments: str, job: str, calls: int, folder: Path) -> dict[str, Any]:
    script = [sys.executable, str(ROOT / "benchmarks" / "inference_jobs.py"), job, str(calls)]
    command = [sys.executable, "-m", "flatout", *arguments, "--out", str(folder), "--", *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        content: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return {"error": done.stderr[-500:]}
    return content


def profiled(job: str, folder: Path) -> dict[str, Any]:
    script = [sys.executable, str(ROOT / "benchmarks" / "inference_jobs.py"), job, str(CALLS[job])]
    command = [sys.executable, "-m", "flatout", "profile", "--out", str(folder), "--", *script]
    subprocess.run(command, capture_output=True, text=True, check=False)
    shown = [sys.executable, "-m", "flatout", "diagnose", str(folder), "--json"]
    diagnosis = json.loads(subprocess.run(shown, capture_output=True, text=True, check=True).stdout)
    findings = {
        finding["name"]: {"share_of_step": finding["share_of_step"], "title": finding["title"]}
        for finding in diagnosis["findings"]
    }
    expected = EXPECTED[job]
    return {
        "step_s": diagnosis["job"]["mean_step_s"],
        "findings": findings,
        "expected": expected,
        "names_one": any(name in findings for name in expected) if expected else None,
    }


def tuned(job: str, folder: Path, budget: str) -> dict[str, Any]:
    options = ("tune", "--budget", budget, "--allow", "rounding", "--json")
    result = flatout(*options, job=job, calls=1_000_000, folder=folder)
    if "error" in result:
        return result
    keys = (
        "verdict",
        "reason",
        "speedup",
        "interval",
        "baseline_step_s",
        "tuned_step_s",
        "num_trials",
        "took_s",
        "order",
    )
    of_change = ("name", "safety", "outcome", "reason", "screened_speedup")
    tried = [{key: change[key] for key in of_change} for change in result["tried"]]
    adopted = [change["name"] for change in result["changes"]]
    return {**{key: result[key] for key in keys}, "adopted": adopted, "tried": tried}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="160s")
    parser.add_argument("--only", nargs="*", default=list(CALLS), choices=list(CALLS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "inference_reports.json")
    options = parser.parse_args()
    import torch

    results: dict[str, Any] = {
        "conditions": {
            "cores": len(os.sched_getaffinity(0)),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "budget": options.budget,
        },
        "jobs": {},
    }
    for job in options.only:
        with tempfile.TemporaryDirectory() as folder:
            load = os.getloadavg()[0]
            entry: dict[str, Any] = {"load_at_start": load, "profile": profiled(job, Path(folder) / "recording")}
            if job not in UNTUNED:
                entry["tune"] = tuned(job, Path(folder) / "tuning", options.budget)
        results["jobs"][job] = entry
        options.out.write_text(json.dumps(results, indent=1) + "\n")
        print(job, json.dumps(entry)[:600], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
