"""Run Flatout on a small job with the torch of another Python environment, as a user with that version would.

    python benchmarks/users_torch.py /path/to/env/bin/python --add benchmarks/results/users_torch.json

The environment needs Flatout's core and torch. Two gloo ranks on the CPU are recorded by `flatout profile`, a tuning
tries changes for two minutes, and `flatout run` keeps the job with a ledger. The result has how each ended, what was
found, and what the code inside the job wrote about problems.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
JOB = str(ROOT / "examples/jobs/train_slow.py")


def tried(python: str, folder: Path) -> dict[str, Any]:
    """Return what the three commands gave with this Python."""
    versions = "import sys, torch; print(torch.__version__, sys.version.split()[0])"
    torch, of_python = subprocess.run(
        [python, "-c", versions], capture_output=True, text=True, check=True
    ).stdout.split()
    job = [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", JOB, "--steps", "120"]
    result: dict[str, Any] = {"torch": torch, "python": of_python}
    code, printed = flatout(python, folder, "profile", "--json", "--out", "recording", "--", *job)
    diagnosis = json.loads(printed.splitlines()[-1]) if printed else {}
    result["profile"] = {
        "code": code,
        "schema": diagnosis.get("schema"),
        "ranks": diagnosis.get("job", {}).get("num_ranks"),
        "steps": diagnosis.get("job", {}).get("num_recorded_steps"),
        "findings": [finding["name"] for finding in diagnosis.get("findings", ())],
    }
    words = ("tune", "--json", "--budget", "120s", "--warmup", "3", "--steps", "10", "--no-history", "--out", "tuning")
    code, printed = flatout(python, folder, *words, "--", *job)
    tuning = json.loads(printed) if printed else {}
    result["tune"] = {
        "code": code,
        "trials": tuning.get("num_trials"),
        "baseline_step_s": tuning.get("baseline_step_s"),
        "tuned_step_s": tuning.get("tuned_step_s"),
        "outcomes": {one["name"]: one["outcome"] for one in tuning.get("tried", ())},
    }
    code, _ = flatout(python, folder, "run", "--ledger", "ledger.jsonl", "--", *job)
    totals, printed = flatout(python, folder, "ledger", "ledger.jsonl", "--json")
    goodput = json.loads(printed).get("goodput") if totals == 0 else None
    result["run"] = {"code": code, "goodput": goodput}
    problems = sorted(folder.rglob("inside-*.log"))
    result["problems"] = [path.read_text()[:2000] for path in problems]
    return result


def flatout(python: str, folder: Path, *arguments: str) -> tuple[int, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "flatout", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=900)
    return done.returncode, done.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("python")
    parser.add_argument("--add", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = tried(arguments.python, Path(folder))
    print(json.dumps(result, indent=1))
    if arguments.add is not None:
        kept = json.loads(arguments.add.read_text()) if arguments.add.exists() else []
        kept = [one for one in kept if one["torch"] != result["torch"]]
        arguments.add.write_text(json.dumps([*kept, result], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
