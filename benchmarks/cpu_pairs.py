"""Jobs on the CPU with and without one change, for `predict_error.py`: profiled once, then all settings in turn.

    python benchmarks/cpu_pairs.py FOLDER

needs torch. Writes FOLDER/NAME (the recording of the job as it comes) and FOLDER/cpu.json (the mean step of each run).
Small jobs on shared cores are noisy, so what counts is the median of the ratios of runs that follow each other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

JOB = str(Path(__file__).with_name("cpu_pair_job.py"))
ONE = [sys.executable, JOB]
TWO = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", JOB]
ROUNDS = 3
MLP = {"width": 768, "layers": 6, "batch": 64}
# The job's settings, and those that each change stands for.
JOBS: dict[str, tuple[list[str], dict[str, Any], dict[str, dict[str, Any]]]] = {
    "cpu_sleep": (
        ONE,
        {**MLP, "sleep": 0.0006},
        {"dataloader-workers=1": {"workers": 1}, "dataloader-workers=2": {"workers": 2}},
    ),
    "cpu_spin": (ONE, {**MLP, "spin": 0.0004}, {"dataloader-workers=1": {"workers": 1}}),
    "cpu_one_worker": (
        ONE,
        {**MLP, "sleep": 0.001, "workers": 1},
        {"dataloader-workers=2": {"workers": 2}, "dataloader-workers=4": {"workers": 4}},
    ),
    "cpu_accum": (TWO, {"width": 1024, "layers": 6, "batch": 16, "accum": 4}, {"ddp-no-sync=4": {"nosync": 1}}),
    "cpu_accum2": (TWO, {"width": 512, "layers": 4, "batch": 64, "accum": 2}, {"ddp-no-sync=2": {"nosync": 1}}),
    "cpu_two_sleep": (TWO, {**MLP, "batch": 32, "sleep": 0.002}, {"dataloader-workers=1": {"workers": 1}}),
    "cpu_buckets": (
        TWO,
        {"width": 512, "layers": 16, "batch": 16, "bucket": 1},
        {"ddp-bucket=100": {"bucket": 100}},
    ),
    "cpu_threads": (ONE, {"width": 1536, "layers": 6, "batch": 128}, {"threads-cpu=2": {"threads": 2}}),
}


def step_s(command: list[str], settings: dict[str, Any]) -> float:
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True, check=True)
    return float(next(line for line in done.stdout.splitlines() if line.startswith("STEP")).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    result = {}
    for name, (command, settings, arms) in JOBS.items():
        words = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
        profile = [sys.executable, "-m", "flatout", "profile", "--force", "--out", str(folder / name), "--warmup", "6"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run([*profile, "--", *command, *words], env=environment, capture_output=True, check=True)
        times: dict[str, list[float]] = {arm: [] for arm in ("base", *arms)}
        for _ in range(ROUNDS):
            for arm, found in times.items():
                found.append(step_s(command, {**settings, **arms.get(arm, {})}))
        ranks = 2 if command is TWO else 1
        result[name] = {"settings": settings, "arms": arms, "step_s": times, "ranks": ranks}
        (folder / "cpu.json").write_text(json.dumps(result, indent=1) + "\n")
        print(name, {arm: [round(each * 1e3, 1) for each in found] for arm, found in times.items()}, flush=True)


if __name__ == "__main__":
    main()
