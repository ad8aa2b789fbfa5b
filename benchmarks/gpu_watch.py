"""What `flatout watch` costs nanoGPT on one GPU, whether its counters are those of `nvidia-smi`, what a share gives.

    python benchmarks/gpu_watch.py --script FOLDER --out OUT [--starts 6] [--iterations 120] [PART ..]

FOLDER is a checkout of karpathy/nanoGPT, whose script runs unmodified, eager, one micro-batch per step. The parts:

    cost      starts alone alternate with starts under `flatout run --metrics-port` (ABBA ..): there the metrics are
              scraped once per second, 15 times as often as Prometheus does, and `flatout watch --once` looks every two
              seconds. Compared are the medians of the step times that the script prints.
    counters  in each watched start, the scraped counters beside `nvidia-smi --query-gpu` before and after the scrape
    record    in the last watched start, `flatout watch PID --record 3`
    watts     `flatout bench --only matmul`
    share     `flatout bench --share`: two processes, alone and together, with the GPU's settings as they are

OUT/gpu_watch.json has the results of all parts that ended.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

PARTS = ("cost", "counters", "record", "watts", "share")
LIMIT = 0.003  # of a step
_WARM_UP = 30  # iterations
_ITERATION = re.compile(rb"iter (\d+): loss [\d.]+, time ([\d.]+)ms")
_METRICS = re.compile(rb"metrics at (\S+)")
# What `nvidia-smi` calls it, and the counter.
_SAME = {
    "clocks.sm": "SM_CLOCK",
    "clocks.mem": "MEM_CLOCK",
    "temperature.gpu": "GPU_TEMP",
    "temperature.memory": "MEMORY_TEMP",
    "power.draw.instant": "POWER_USAGE",
    "utilization.gpu": "GPU_UTIL",
    "utilization.memory": "MEM_COPY_UTIL",
    "memory.used": "FB_USED",
    "ecc.errors.corrected.volatile.total": "ECC_SBE_VOL_TOTAL",
    "ecc.errors.uncorrected.volatile.total": "ECC_DBE_VOL_TOTAL",
}


class Start:
    """One start of the script: its step times, and where its metrics are."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid
        self.step_s: dict[int, float] = {}
        self.address: str | None = None
        self.last_lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.last_lines = [*self.last_lines[-20:], line.decode(errors="replace")]
            if found := _ITERATION.search(line):
                self.step_s[int(found[1])] = float(found[2]) / 1e3
            elif metrics := _METRICS.search(line):
                self.address = metrics[1].decode()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> list[float]:
        """Return the settled step times. Raise SystemExit if the script failed."""
        code = self._process.wait()
        self._reader.join()
        if code:
            raise SystemExit(f"the script ended with {code}: {''.join(self.last_lines)}")
        return [seconds for number, seconds in sorted(self.step_s.items()) if number >= _WARM_UP]

    def end(self) -> None:
        if self.is_running:
            os.killpg(self.pid, signal.SIGTERM)


def script_command(arguments: argparse.Namespace) -> list[str]:
    options = ["--dataset=random", "--compile=False", "--eval_iters=1", "--log_interval=1"]
    options += ["--gradient_accumulation_steps=1", f"--max_iters={arguments.iterations}", "--eval_interval=100000"]
    return [sys.executable, "train.py", *options]


def smi(device: int) -> dict[str, float | None]:
    """Return what `nvidia-smi` says of a GPU; None for what it does not give."""
    query = [f"--query-gpu={','.join(_SAME)}", "--format=csv,noheader,nounits", f"--id={device}"]
    line = subprocess.run(["nvidia-smi", *query], capture_output=True, text=True, check=True).stdout
    return {name: _number(cell) for name, cell in zip(_SAME, line.split(","), strict=True)}


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def scrape(address: str) -> str:
    with urllib.request.urlopen(address, timeout=30) as answer:
        return str(answer.read().decode())


def counters(page: str) -> dict[str, float]:
    """Return the counters of the job's GPU."""
    found = re.findall(r"^DCGM_FI_DEV_(\w+)\{[^}]*\} (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def watched(start: Start, *, device: int, with_counters: bool, record: Path | None) -> dict[str, Any]:
    """Scrape once per second and look every two, until the start has ended."""
    pairs: list[dict[str, Any]] = []
    looks: list[int] = []
    num_scrapes, recorded = 0, None
    while start.is_running:
        time.sleep(1)
        if start.address is None or len(start.step_s) < _WARM_UP:
            continue
        before = smi(device) if with_counters and len(pairs) < 8 else None
        try:
            page = scrape(start.address)
        except OSError:
            break
        num_scrapes += 1
        if before is not None:
            pairs.append({"before": before, "flatout": counters(page), "after": smi(device)})
        if num_scrapes % 2 == 0:
            words = [sys.executable, "-m", "flatout", "watch", str(start.pid), "--once", "--json"]
            looks.append(subprocess.run(words, capture_output=True, text=True, check=False).returncode)
        if record is not None and num_scrapes >= 3:
            words = [sys.executable, "-m", "flatout", "watch", str(start.pid), "--record", "3", "--out", str(record)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            recorded = {"code": done.returncode, "output": (done.stdout + done.stderr)[-3000:]}
            break
    return {"num_scrapes": num_scrapes, "looks": looks, "pairs": pairs, "record": recorded}


def cost(arguments: argparse.Namespace, keep: Callable[[str, Any], None]) -> None:
    alone: list[float] = []
    under: list[float] = []
    pairs: list[dict[str, Any]] = []
    flatout = [sys.executable, "-m", "flatout", "run", "--metrics-port", "0", "--"]
    for number in range(arguments.starts):
        is_watched = number % 4 in (1, 2)
        command = script_command(arguments)
        start = Start([*flatout, *command] if is_watched else command, arguments.script)
        try:
            if is_watched:
                seen = watched(start, device=arguments.device, with_counters="counters" in arguments.parts, record=None)
                pairs += seen.pop("pairs")
                print(seen, flush=True)
            steps = start.wait()
        finally:
            start.end()
        (under if is_watched else alone).append(median(steps))
        print(f"{'watched' if is_watched else 'alone'}: {median(steps) * 1e3:.3f} ms, {len(steps)} steps", flush=True)
        keep("cost", compared(alone, under))
        keep("counters", {"by_name": differences(pairs), "num_scrapes": len(pairs)})


def compared(alone: list[float], under: list[float]) -> dict[str, Any]:
    """Return the cost of watching as a share of a step, with its 95 % interval by the starts' medians."""
    result: dict[str, Any] = {"alone_ms": [1e3 * each for each in alone], "watched_ms": [1e3 * each for each in under]}
    if len(alone) < 2 or len(under) < 2:
        return result
    share = mean(under) / mean(alone) - 1
    sd = math.hypot(stdev(alone) / math.sqrt(len(alone)), stdev(under) / math.sqrt(len(under))) / mean(alone)
    return result | {"share": share, "reach": 1.96 * sd, "limit": LIMIT}


def differences(pairs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by counter how often it lay between both readings of `nvidia-smi`, and the readings that did not."""
    shown = {}
    for name, counter in _SAME.items():
        known = [
            (pair["before"][name], pair["flatout"][counter], pair["after"][name])
            for pair in pairs
            if counter in pair["flatout"] and None not in (pair["before"][name], pair["after"][name])
        ]
        outside = [each for each in known if not min(each[0], each[2]) - 0.5 <= each[1] <= max(each[0], each[2]) + 0.5]
        shown[counter] = {"num_compared": len(known), "num_between": len(known) - len(outside), "outside": outside}
    return shown


def record(arguments: argparse.Namespace, keep: Callable[[str, Any], None]) -> None:
    flatout = [sys.executable, "-m", "flatout", "run", "--metrics-port", "0", "--"]
    longer = argparse.Namespace(**{**vars(arguments), "iterations": 5 * arguments.iterations})
    start = Start([*flatout, *script_command(longer)], arguments.script)
    try:
        seen = watched(start, device=arguments.device, with_counters=False, record=arguments.out / "recorded")
    finally:
        start.end()
    keep("record", seen["record"])


def bench(arguments: argparse.Namespace, keep: Callable[[str, Any], None], name: str, *options: str) -> None:
    path = arguments.out / f"{name}.json"
    words = [sys.executable, "-m", "flatout", "bench", *options, "--out", str(path), "--force", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    keep(name, {"code": done.returncode, "output": done.stdout[-6000:], "errors": done.stderr[-1500:]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=150)
    parser.add_argument("--device", type=int, default=0, help="of nvidia-smi")
    parser.add_argument("parts", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    arguments.out = arguments.out.resolve()
    arguments.parts = arguments.parts or list(PARTS)
    arguments.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}

    def keep(part: str, result: Any) -> None:
        results[part] = result
        (arguments.out / "gpu_watch.json").write_text(json.dumps(results, indent=1) + "\n")

    of_parts: dict[str, Callable[[], None]] = {
        "cost": lambda: cost(arguments, keep),
        "record": lambda: record(arguments, keep),
        "watts": lambda: bench(arguments, keep, "watts", "--only", "matmul", "--time", "30s"),
        "share": lambda: bench(arguments, keep, "share", "--share", "--ranks", "2", "--time", "45s"),
    }
    for part, run in of_parts.items():
        if part not in arguments.parts:
            continue
        try:
            run()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the other parts are run all the same
            keep(part, {"error": repr(error)})
        print(part, json.dumps(results.get(part))[:1500], flush=True)


if __name__ == "__main__":
    main()
