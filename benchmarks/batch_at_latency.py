"""`flatout tune --latency` on a real script that only infers: is the batch that it finds the best one within the limit?

    python benchmarks/batch_at_latency.py [--budget 4m] [--loader] [--out FILE]

The truth is measured by hand first: `batch_at_latency_job.py` times its own calls at each size, three starts each, in
turn. The limit lies between the 99th percentiles of 16 and 64. Then the unmodified job is tuned from batch 4: by its
own argument, or with `--loader` by the batches of its DataLoader.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.kept_result import keep

JOB = Path(__file__).with_name("batch_at_latency_job.py")
SIZES = (4, 16, 64)
STARTS = 3
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def by_hand(folder: Path) -> dict[int, dict[str, float]]:
    """Return the median over the starts of what the job itself measured at each size."""
    found: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
    for _ in range(STARTS):
        for size in SIZES:
            words = [sys.executable, JOB.name, "--batch", str(size), "--calls", "200"]
            done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=True)
            found[size].append(json.loads(done.stdout))
    return {size: {name: median(run[name] for run in runs) for name in runs[0]} for size, runs in found.items()}


def tuned(folder: Path, limit: str, budget: str, *, loader: bool) -> dict[str, Any]:
    how = ["--loader"] if loader else []
    knob = [] if loader else ["--knob", f"batch={{{','.join(map(str, SIZES))}}}:--batch {{}}"]
    words = [sys.executable, "-m", "flatout", "tune", "--latency", limit, *knob, "--budget", budget, "--out", "out"]
    words += ["--no-history", "--json", "--", sys.executable, JOB.name, "--batch", str(SIZES[0]), *how]
    done = subprocess.run(words, cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="4m")
    parser.add_argument("--loader", action="store_true", help="tune the batches of the script's DataLoader")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    options = parser.parse_args()
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(JOB, folder)
        truth = by_hand(folder)
        limit_s = math.sqrt(truth[16]["p99_s"] * truth[64]["p99_s"])
        limit = f"p99<{limit_s * 1e3:.3f}ms"
        within = {size: run["samples_per_s"] for size, run in truth.items() if run["p99_s"] <= limit_s}
        result = tuned(folder, limit, options.budget, loader=options.loader)
    tried = [
        {key: one[key] for key in ("name", "outcome", "reason", "screened_speedup")}
        for one in result["tried"]
        if any("batch" in change for change in one["changes"])
    ]
    keep(
        {
            "load_average": load,
            "cores": os.cpu_count(),
            "by_hand": truth,
            "limit": limit,
            "best_by_hand": max(within, key=lambda size: within[size]),
            "adopted": [change["name"] for change in result["changes"]],
            "verdict": [result[key] for key in ("verdict", "speedup", "interval", "order")],
            "tried": tried,
            "notes": result["notes"],
            "took_s": result["took_s"],
        },
        options.out,
    )


if __name__ == "__main__":
    main()
