"""Let `flatout tune jax` find a planted cause of a JAX job on several GPUs, and keep the result as a small JSON.

    python benchmarks/jax_changes_gpu.py --out benchmarks/results/jax_changes_gpu.json
    python benchmarks/jax_changes_gpu.py --cpu --budget 60     # the same path on two devices of a CPU

The interpreter needs JAX and Flatout's core; the first form needs two GPUs. The job is `jax_gradients_job.py`: a step
with one gradient for each of many layers. The cause is in its XLA_FLAGS, which forbid XLA to combine all-reduces (on
CPUs: to use several cores). `--only` and `--xla-flags` ask about other changes; `--xla-flags ''` plants nothing.

Trials are in a temporary folder. The result has the verdicts, each trial's step and start, and how many all-reduces
its compiled step had. It is also written if the tuning does not end within `--limit` seconds, then without verdicts.
Exits with 0 if a change is better, otherwise with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from flatout.xla_tuner.trial import read_processes

ROOT = Path(__file__).parents[1]
JOB = ROOT / "benchmarks" / "jax_gradients_job.py"
PLANTED_ON_GPUS = "--xla_gpu_all_reduce_combine_threshold_bytes=0"
PLANTED_ON_CPUS = "--xla_force_host_platform_device_count=2 --xla_cpu_multi_thread_eigen=false"
DEVICES = (
    "import jax; print(jax.__version__, jax.default_backend(), *(d.device_kind for d in jax.devices()), sep='\\t')"
)
PREPARING_S, ENDING_S = 90.0, 20.0


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the result there, too")
    parser.add_argument("--cpu", action="store_true", help="on two devices of the CPU, with a smaller job")
    parser.add_argument("--only", action="append", metavar="NAME", help="a change to try; may be repeated")
    parser.add_argument("--xla-flags", help="of the unchanged job; the default is the planted cause")
    parser.add_argument("--allow", default="exact", choices=("exact", "rounding"))
    parser.add_argument("--budget", type=float, default=85.0, help="seconds for the trials")
    parser.add_argument("--limit", type=float, default=100.0, help="seconds after which the tuning is ended")
    parser.add_argument("--steps", type=int, default=60, help="steps that a trial counts")
    return parser.parse_args(arguments)


def environment_of(options: argparse.Namespace) -> dict[str, str]:
    """Return the environment of the unchanged job: the user's, and the planted flags after the user's own."""
    planted = options.xla_flags
    if planted is None:
        planted = PLANTED_ON_CPUS if options.cpu else PLANTED_ON_GPUS
    flags = " ".join(filter(None, [os.environ.get("XLA_FLAGS"), planted]))
    paths = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    platform = {"JAX_PLATFORMS": "cpu"} if options.cpu else {}
    return {**os.environ, **platform, "XLA_FLAGS": flags, "PYTHONPATH": paths}


def devices_of(environment: dict[str, str]) -> dict[str, Any]:
    """Return what JAX runs on. This start also brings JAX's files into memory, which the first trial then finds."""
    command = [sys.executable, "-c", DEVICES]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PREPARING_S)
    if done.returncode:
        reason = next(reversed(done.stderr.strip().splitlines()), "no message")
        raise SystemExit(f"error: JAX does not start: {reason}")
    version, backend, *devices = done.stdout.strip().splitlines()[-1].split("\t")
    if len(devices) < 2:
        raise SystemExit(f"error: the job needs two devices or more, but JAX {version} has {devices} on {backend}")
    return {"jax": version, "python": sys.version.split()[0], "platform": backend, "devices": devices}


def tune_command(options: argparse.Namespace, folder: Path) -> list[str]:
    names = options.only or (["xla-cpu-threads"] if options.cpu else ["xla-combine=128"])
    size = ["--layers", "4", "--width", "512", "--rows", "512"] if options.cpu else []
    return [
        *(sys.executable, "-m", "flatout", "tune", "jax"),
        *(word for name in names for word in ("--only", name)),
        *("--allow", options.allow, "--budget", f"{options.budget:g}s", "--steps", str(options.steps)),
        *("--out", str(folder), "--", sys.executable, str(JOB), "--out", "{trial_dir}", *size),
    ]


def shown(command: list[str], temporary: str) -> str:
    """Return the command as a user types it, without paths of this machine."""
    words = ["python" if word == sys.executable else word for word in command[3:]]
    return shlex.join(["flatout", *words]).replace(temporary, "TMP").replace(f"{ROOT}/", "")


def run_limited(command: list[str], environment: dict[str, str], limit_s: float) -> int | None:
    """Run the tuning, and interrupt it as Ctrl-C would after `limit_s`; None if it did not end by itself."""
    process = subprocess.Popen(command, env=environment, stdout=sys.stderr)
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING_S)
        return None
    finally:
        if process.poll() is None:
            process.kill()


def trials_of(folder: Path) -> list[dict[str, Any]]:
    """Return one row for each trial, from what its processes wrote: also of a tuning that was ended."""
    rows = []
    for trial in sorted((folder / "trials").glob("*")):
        processes = read_processes(trial / "steps")
        if processes is None:
            output = (trial / "output.txt").read_text(errors="replace").strip().splitlines()
            rows.append({"trial": trial.name, "problem": output[-3:]})
            continue
        steps = sorted(processes.step_s[0])
        count = trial / "all_reduces.json"
        rows.append(
            {
                "trial": trial.name,
                "step_s": steps[len(steps) // 2] if steps else None,
                "num_steps": len(steps),
                "start_s": max(processes.start_s),
                "all_reduces": json.loads(count.read_text()) if count.exists() else None,
                "last_loss": processes.losses[-1] if processes.losses else None,
            }
        )
    return rows


def verdicts_of(folder: Path) -> list[dict[str, Any]] | None:
    """Return one row for each change; None if the tuning did not end."""
    file = folder / "tuning.json"
    if not file.exists():
        return None
    tuning = json.loads(file.read_text())
    kept = ("verdict", "measure", "speedup", "interval", "num_pairs", "loss_gate", "reason")
    rows = [{"change": tried["change"]["name"], **{key: tried[key] for key in kept}} for tried in tuning["tried"]]
    return rows + [{"not_offered": reason} for reason in tuning["not_offered"]]


def main() -> int:
    options = options_of()
    environment = environment_of(options)
    begun_s = time.monotonic()
    devices = devices_of(environment)
    print(f"JAX {devices['jax']} on {', '.join(devices['devices'])}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "tuning"
        command = tune_command(options, folder)
        code = run_limited(command, environment, options.limit)
        result = {
            **devices,
            "xla_flags": environment["XLA_FLAGS"],
            "command": shown(command, temporary),
            "exit_code": code,
            "verdicts": verdicts_of(folder),
            "trials": trials_of(folder),
            "took_s": round(time.monotonic() - begun_s, 1),
        }
    text = json.dumps(result, indent=1)
    print(text)
    if options.out is not None:
        options.out.write_text(text + "\n")
    return 0 if code == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
