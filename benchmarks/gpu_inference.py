"""Inference of a vision model on one GPU: from eager in 32 bits to what `flatout tune` finds, beside one by hand.

    python benchmarks/gpu_inference.py --out OUT [--model vit] [--batch 16] [--batches 64] [--budget 150s] [--limit 255]
    python benchmarks/gpu_inference.py --out OUT --model vit-tiny --device cpu --seconds 5 --batches 32   # on a CPU

`gpu_inference_job.py` is the script, as users write it: no precision, no compilation, small batches. It is tuned with
`--allow rounding`, a limit on the latency of a batch (`--latency`) and larger batches to choose from (`--batches`).
Then starts of it alternate: by hand (bf16, compiled with CUDA graphs, channels-last for ResNet-50, the largest batch),
with the tuned settings, and untouched, as long as `--limit` seconds allow. The truth is the rate that each start prints
of itself, without its warm-up. OUT gets the tuning's log and JSON, and `gpu_inference.json` after each start.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

JOB = Path(__file__).with_name("gpu_inference_job.py")
FLATOUT = [sys.executable, "-m", "flatout"]
_RATE = re.compile(r"([\d.]+) images/s")
SPARE_S = 5.0  # that a start may take longer than the last one of its arm
FIRST_S = 25.0  # that the first one of an arm is expected to take
OF_TUNING = ("verdict", "speedup", "interval", "changes", "order", "ended_by", "baseline_step_s", "tuned_step_s")


def rate(command: list[str], folder: Path) -> float | None:
    """Return the rate that a start prints; None if it prints none, and then print what it said."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    found = _RATE.search(done.stdout)
    if found is None:
        print(f"no rate from {command}: {done.returncode} {done.stdout[-500:]} {done.stderr[-1500:]}", flush=True)
        return None
    return float(found[1])


def tuned(folder: Path, out: Path, job: list[str], wanted: argparse.Namespace) -> dict[str, Any]:
    """Tune the job, and return what its `--json` prints, without its single trials."""
    words = [*FLATOUT, "tune", "--budget", wanted.budget, "--allow", "rounding", "--latency", wanted.latency]
    if wanted.batches:
        words += ["--knob", f"batch={{{wanted.batches}}}:--batch {{}}"]
    words += ["--out", "tuning", "--force", "--no-history", "--json", "--", *job]
    with (out / "tune.log").open("w") as log:
        done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
    if not done.stdout:
        raise SystemExit((out / "tune.log").read_text()[-3000:])
    content = dict(json.loads(done.stdout))
    (out / "tune.json").write_text(done.stdout)
    return content


def arms_of(wanted: argparse.Namespace, job: list[str], has_tuned: bool) -> dict[str, list[str]]:
    """Return the commands to start; that of the tuned job only if a change was accepted."""
    seconds = ["--seconds", str(wanted.seconds)]
    largest = max([wanted.batch, *map(int, filter(None, wanted.batches.split(",")))])
    arms = {"by hand": [*job, *seconds, "--batch", str(largest), "--by-hand"]}
    if has_tuned:
        arms["tuned"] = [*FLATOUT, "run", "--config", "tuning/tuned.toml", "--", *job, *seconds]
    return arms | {"untouched": [*job, *seconds]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="vit", help="vit, resnet50, or vit-tiny and resnet-tiny on a CPU")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--batches", default="64", help="larger batches to try, with commas; empty for none")
    parser.add_argument("--latency", default="p99<100ms")
    parser.add_argument("--seconds", type=float, default=8.0, help="that each start after the tuning is measured")
    parser.add_argument("--budget", default="150s")
    parser.add_argument("--limit", type=float, default=255.0, help="seconds for the tuning and the starts after it")
    parser.add_argument("--turns", type=int, default=2)
    wanted = parser.parse_args()
    until_s = time.monotonic() + wanted.limit
    out = wanted.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(JOB, folder)
        job = [sys.executable, JOB.name, wanted.model, "--device", wanted.device, "--batch", str(wanted.batch)]
        tuning = tuned(folder, out, job, wanted)
        config = folder / "tuning" / "tuned.toml"
        if config.exists():
            shutil.copy(config, out)
        result: dict[str, Any] = {
            "schema": "flatout/benchmark-gpu-inference",
            "model": wanted.model,
            "device": wanted.device,
            "batch": wanted.batch,
            "torch": version("torch"),
            "cores": len(os.sched_getaffinity(0)),
            "tuning": {name: tuning[name] for name in OF_TUNING},
            "tried": [[arm["name"], arm["outcome"], arm["reason"]] for arm in tuning["tried"]],
            "images_per_s": {},
        }
        measure(folder, out, arms_of(wanted, job, config.exists()), result, wanted.turns, until_s)
    return 0 if "tuned" in result["images_per_s"] else 1


def measure(
    folder: Path, out: Path, arms: dict[str, list[str]], result: dict[str, Any], turns: int, until_s: float
) -> None:
    """Start the arms in turn while time allows, and write the result after each start."""
    lasted_s = dict.fromkeys(arms, FIRST_S)
    rates: dict[str, list[float]] = result["images_per_s"]
    for turn in range(turns):
        for name in sorted(arms, reverse=turn % 2 == 1):
            began_s = time.monotonic()
            if began_s + lasted_s[name] + SPARE_S > until_s:
                print(f"not started, because --limit does not allow it: {name}", flush=True)
                continue
            its_rate = rate(arms[name], folder)
            lasted_s[name] = time.monotonic() - began_s
            if its_rate is not None:
                rates.setdefault(name, []).append(its_rate)
            result["over_untouched"] = _over(rates, "untouched")
            print(name, rates.get(name), flush=True)
            (out / "gpu_inference.json").write_text(json.dumps(result, indent=1) + "\n")


def _over(rates: dict[str, list[float]], base: str) -> dict[str, float]:
    """Return the ratio of each arm's median rate to that of the base; empty without one of the base."""
    if base not in rates:
        return {}
    return {name: round(median(own) / median(rates[base]), 2) for name, own in rates.items()}


if __name__ == "__main__":
    sys.exit(main())
