"""`flatout compress` on a transformer of 0.44 B in bfloat16 on one GPU: which variants are faster, and which slower?

    python benchmarks/gpu_compress.py OUT [--seconds 285] [--wheels FOLDER] [--compile] [--batches 32,1] [--variants ..]
    python benchmarks/gpu_compress.py OUT --device cpu --tiny --seconds 400    # the same in small, without a GPU

The model learns a rule first (`gpu_compress_job.py`), so that its accuracy on held-out samples means something. Then
each variant is graded and timed by hand in one process, and `flatout compress` takes the time that is left. A variant
that prunes half of the hidden channels is the trap: fast and wrong. With `--compile` the benchmark compiles the
model's blocks, as users of torchao do; the first variants are compiled into the cache before, while nothing is timed.
`--wheels` holds wheels of torchao and bitsandbytes, which are unpacked into a temporary folder. OUT receives
`gpu_compress.json`, which is rewritten after each part, and the files of the compression. Exits with 1 if the trap is
recommended, if a recommended variant loses more than the limit by hand or was slower by the job's own clock, or if the
untouched model did not learn the rule.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

JOB = Path(__file__).with_name("gpu_compress_job.py")
SOURCE = Path(__file__).resolve().parents[1] / "src"
STARTUP = SOURCE / "flatout" / "inside" / "startup"
TRAP = "prune-channels-half"
VARIANTS = (
    *("torchao-fp8-dynamic", "torchao-int4-weights", "torchao-int8-dynamic", TRAP, "torchao-fp8-weights"),
    *("torchao-int8-weights", "bitsandbytes-nf4", "bitsandbytes-int8"),
)
NUM_WARM = 4  # variants that are compiled into the cache before anything is timed
MAX_LOSS = 0.01
LEAST_ACCURACY = 0.9
FEWEST_CALLS = 50  # a process that made fewer was compiling
END_S, STOP_S = 12.0, 8.0  # kept for the end of the compression, and after a signal
KEPT = ("compress.json", "report.html", "runs.jsonl")


class Benchmark:
    """Its parts in order; what is known is in OUT after each one."""

    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder, self.out = arguments, folder, arguments.out
        self.began_s = time.monotonic()
        self.result: dict[str, Any] = {"arguments": vars(arguments) | {"out": None, "wheels": None}, "parts_s": {}}
        self.out.mkdir(parents=True, exist_ok=True)
        packages = folder / "packages"
        unpack(arguments.wheels, packages)
        cache = folder / "inductor"
        paths = [str(packages), str(SOURCE), os.environ.get("PYTHONPATH", "")]
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TOKENIZERS_PARALLELISM": "false",
        }

    def left_s(self) -> float:
        return float(self.arguments.seconds) - (time.monotonic() - self.began_s)

    def job(self, what: str, *more: str) -> list[str]:
        words = [sys.executable, str(JOB), what, str(self.folder), "--device", self.arguments.device]
        return [*words, *(["--tiny"] if self.arguments.tiny else []), *more]

    def infer(self, batch: str) -> list[str]:
        return self.job("infer", "--batch", batch, *(["--compile"] if self.arguments.compile else []))

    def part(self, name: str, run: Callable[[], Any]) -> None:
        began_s = time.monotonic()
        try:
            self.result[name] = run()
        except Exception as error:  # noqa: BLE001 - the parts that follow are still of use
            self.result[name] = {"error": f"{type(error).__name__}: {error}"[:400]}
        self.result["parts_s"][name] = round(time.monotonic() - began_s, 1)
        self.save()
        shown = self.result[name]
        print(f"{time.monotonic() - self.began_s:6.1f} s  {name}: {json.dumps(shown)[:4000]}", flush=True)

    def save(self) -> None:
        text = json.dumps(self.result, indent=1, default=str)
        (self.out / "gpu_compress.json").write_text(text + "\n")

    def lines(self, words: Sequence[str], limit_s: float) -> list[dict[str, Any]]:
        """Run a command of the job, and return the lines of JSON that it printed, those of a cut run too."""
        log = self.folder / "job.log"
        with log.open("w") as file:
            child = subprocess.Popen(words, env=self.environment, stdout=subprocess.PIPE, stderr=file, text=True)
            timer = threading.Timer(max(limit_s, 1.0), child.kill)
            timer.start()
            printed, _ = child.communicate()
            timer.cancel()
        rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
        if child.returncode:
            rows.append({"error": log.read_text().strip().splitlines()[-3:], "code": child.returncode})
        return rows

    def train(self) -> Any:
        words = self.job("train", "--seconds", str(self.arguments.train_seconds))
        if self.arguments.tiny:
            words += ["--rate", "3e-3"]
        return self.lines(words, self.left_s() / 2)

    def by_hand(self) -> Any:
        more = ["--variants", ",".join(self.variants()), "--batches", self.arguments.batches]
        return self.lines(self.job("by-hand", *more), self.left_s() / 3)

    def variants(self) -> list[str]:
        return [name for name in self.arguments.variants.split(",") if name]

    def start_warming(self) -> ThreadPoolExecutor:
        """Compile the first variants at the same time, while `flatout compress` evaluates and times nothing yet."""
        kinds = ["none", *self.variants()[:NUM_WARM]]
        runs = [(kind, batch) for kind in kinds for batch in self.arguments.batches.split(",")]
        pool = ThreadPoolExecutor(max_workers=len(runs))
        for kind, batch in runs:
            pool.submit(self.warm, kind, batch)
        return pool

    def warm(self, kind: str, batch: str) -> None:
        reports = self.folder / f"warm-{kind}-{batch}"
        reports.mkdir()
        environment = {
            **self.environment,
            "PYTHONPATH": f"{STARTUP}{os.pathsep}{self.environment['PYTHONPATH']}",
            "FLATOUT_COMPRESS": json.dumps({"variant": kind}),
            "FLATOUT_REPORTS": str(reports),
            "TORCHINDUCTOR_COMPILE_THREADS": "2",
        }
        words = [*self.infer(batch), "--calls", "5"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
        error = done.stderr.strip().splitlines()[-1:] if done.returncode else ""
        print(f"        compiled {kind} at batch {batch}: code {done.returncode} {error}", flush=True)

    def compress(self) -> Any:
        """Run `flatout compress` in the time that is left, and copy what it writes to OUT while it runs."""
        found = self.folder / "compressed"
        budget_s = max(self.left_s() - END_S - STOP_S, 10.0)
        commands = ["--eval", shlex.join(self.job("eval")), "--bench", shlex.join(self.infer("{batch}"))]
        limits = ["--metric", "accuracy", "--max-loss", f"{MAX_LOSS:.0%}", "--budget", f"{budget_s:.0f}s"]
        what = ["--variants", ",".join(self.variants()), "--batches", self.arguments.batches, "--out", str(found)]
        words = [*shlex.split(self.arguments.flatout), "compress", *commands, *limits, *what]
        with (self.out / "compress.log").open("w") as log:
            child = subprocess.Popen(words, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            pool = self.start_warming() if self.arguments.compile else None
            while child.poll() is None and self.left_s() > STOP_S:
                time.sleep(1.0)
                self.copy(found)
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_S)
            if child.poll() is None:
                child.kill()
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        self.copy(found)
        told = {"code": child.returncode, "budget_s": budget_s}
        if not (found / "compress.json").exists():
            return {**told, "error": (self.out / "compress.log").read_text()[-1500:]}
        return {**told, **summary(json.loads((found / "compress.json").read_text()))}

    def copy(self, found: Path) -> None:
        for name in KEPT:
            with suppress(OSError):
                shutil.copy(found / name, self.out / name)

    def own_clock(self) -> Any:
        """Return the untouched model's time over the variant's, at each batch size, by the job's own clock.

        A trial prints its median as it runs; its last line counts, and the median over trials.
        """
        last: dict[tuple[str, int, int], float] = {}
        for row in self.printed_by_trials():
            if row["calls"] >= FEWEST_CALLS:
                last[row["variant"], row["batch"], row["pid"]] = row["median_ms"]
        times: dict[tuple[str, int], list[float]] = {}
        for (variant, batch, _), median_ms in last.items():
            times.setdefault((variant, batch), []).append(median_ms)
        rows = {}
        for (variant, batch), found in sorted(times.items()):
            baseline = times.get(("none", batch))
            ratio = middle(baseline) / middle(found) if baseline else None
            rows[f"{variant}, batch {batch}"] = {"ms": [round(each, 4) for each in found], "speedup": ratio}
        return rows

    def printed_by_trials(self) -> list[dict[str, Any]]:
        rows = []
        for path in sorted((self.folder / "compressed" / "benchmarks").rglob("output.log")):
            for line in path.read_text(errors="replace").splitlines():
                with suppress(ValueError):  # a line of something else, or one that was cut
                    row = json.loads(line)
                    rows += [row] if isinstance(row, dict) and "median_ms" in row else []
        return rows

    def check(self) -> list[str]:
        """Return what is wrong with the result; [] if nothing is."""
        wrong = []
        compressed = self.result["compressed"]
        if "variants" not in compressed:
            return ["flatout compress has no result"]
        if compressed["evaluation"]["value"] < LEAST_ACCURACY:
            wrong.append(f"the model did not learn the rule: {compressed['evaluation']['value']:.3f}")
        if TRAP in compressed["recommended"]:
            wrong.append(f"the trap {TRAP} is recommended")
        by_hand = {row.get("variant"): row for row in self.result["by_hand"] if "accuracy" in row}
        for name in compressed["recommended"]:
            limit = by_hand.get("untouched", {}).get("accuracy", 0.0) * (1 - MAX_LOSS)
            if by_hand.get(name, {}).get("accuracy", 1.0) < limit:
                wrong.append(f"{name} is recommended, but its accuracy by hand is below the limit")
            for batch in self.arguments.batches.split(","):
                ratio = self.result["own_clock"].get(f"{name}, batch {batch}", {}).get("speedup")
                if ratio is not None and ratio < 0.97:
                    wrong.append(f"{name} is recommended, but is {ratio:.2f} times as fast at batch {batch}")
        return wrong


def middle(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def unpack(wheels: Path | None, folder: Path) -> None:
    folder.mkdir()
    for pattern in ("torchao-*.whl", "bitsandbytes-*.whl"):
        for wheel in sorted(wheels.glob(pattern)) if wheels else []:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Return what the page says, by name."""
    rows = {}
    for variant in result["variants"]:
        verdicts = {speed["batch"]: speed["verdict"] for speed in variant["speeds"]}
        rows[variant["name"]] = {
            **{name: variant[name] for name in ("outcome", "reason", "refusal", "dominated_by", "disk_bytes")},
            **{
                name: variant[name] for name in ("memory_bytes", "memory_kind", "load_s", "search", "final", "screened")
            },
            "modules": len(variant["modules"]),
            "speed": {
                batch: [verdict["verdict"], verdict["speedup"], verdict["interval"], verdict["order"]]
                for batch, verdict in verdicts.items()
            },
        }
    names = ("recommended", "evaluation", "num_screening_starts", "num_trials", "took_s", "ended_by")
    names += ("unoffered", "is_repeatable")
    untouched = ("disk_bytes", "memory_bytes", "memory_kind", "load_s", "weight_bytes")
    return {
        **{name: result[name] for name in names},
        "slower": [name for name, row in rows.items() if row["refusal"] == "slower"],
        "looks_slower": [name for name, row in rows.items() if row["refusal"] == "looks_slower"],
        "dominated": {name: row["dominated_by"] for name, row in rows.items() if row["dominated_by"]},
        "untouched": {name: result["untouched"][name] for name in untouched},
        "variants": rows,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=285.0, help="of everything")
    parser.add_argument("--train-seconds", type=float, default=25.0)
    parser.add_argument("--wheels", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batches", default="32,1")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--flatout", default=f"{sys.executable} -m flatout")
    parser.add_argument("--scratch", type=Path, help="folder for weights: some GB")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.scratch, ignore_cleanup_errors=True) as name:
        benchmark = Benchmark(arguments, Path(name))
        benchmark.part("trained", benchmark.train)
        benchmark.part("by_hand", benchmark.by_hand)
        benchmark.part("compressed", benchmark.compress)
        benchmark.part("own_clock", benchmark.own_clock)
        benchmark.part("wrong", benchmark.check)
    return 1 if benchmark.result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
