"""What `flatout watch` costs nanoGPT on one GPU, whether its counters are those of `nvidia-smi`, what a share gives.

    python benchmarks/gpu_watch.py --script FOLDER --out OUT [--seconds 120] [--block-s 4] [PART ..]
    python benchmarks/gpu_watch.py --script FOLDER --out OUT --micro-batches 40 --compile --skip 1 --warm-up 10 cost
    python benchmarks/gpu_watch.py --stand-in 50 --out OUT [--plant 0.01] [--idle] cost

FOLDER is a checkout of karpathy/nanoGPT, whose script runs unmodified: eager and with one micro-batch per step, which
on an H200 takes 54 ms, give or take 5 % from one step to the next, or with the second command as its own defaults say,
compiled and with 40 micro-batches, which takes 1.1 s, give or take 0.3 %. The first three parts share one start of it
under `flatout run --metrics-port`:

    counters  the scraped counters beside `nvidia-smi --query-gpu` before and after each scrape
    cost      while the metrics are scraped once per second, 15 times as often as Prometheus does, and `flatout watch`
              shows the job on a terminal: in every other block of 4 s nothing is watched (see `gpu_watch_job.py`).
              Stopped are `flatout run`, its exporter, the scraper and `flatout watch`; taken out are the hooks in
              the job. The first steps of a block do not count. Blocks are compared in pairs of neighbours.
    record    then `flatout watch PID --record 3`
    watts     `flatout bench --only matmul`
    share     `flatout bench --share`: two processes, alone and together, with the GPU's settings as they are

All parts run unless some are named. OUT/gpu_watch.json has the results of the parts that have ended, and is written
again after each; OUT/counters.jsonl and OUT/blocks.jsonl get their lines as they come.

To test the method without a GPU, `--stand-in MS` trains a small model whose steps sleep so long, `--plant SHARE` makes
watched steps longer, and `--idle` leaves the watchers alone, so that both kinds of blocks are the same.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil
from gpu_watch_job import Settings
from profile_overhead import t_interval

PARTS = ("counters", "cost", "record", "watts", "share")
OF_ONE_START = PARTS[:3]
LIMIT = 0.003  # of a step
NUM_COUNTERS = 8
TOO_LONG = 1.5  # times the median
_PATIENCE_S = 120.0
_HERE = Path(__file__).resolve().parent
_METRICS = re.compile(r"metrics at (\S+)")
# What `nvidia-smi` calls it, and the counter.
_SAME = {
    "clocks.sm": "SM_CLOCK",
    "clocks.mem": "MEM_CLOCK",
    "temperature.gpu": "GPU_TEMP",
    "temperature.memory": "MEMORY_TEMP",
    "power.draw.average": "POWER_USAGE",
    "utilization.gpu": "GPU_UTIL",
    "utilization.memory": "MEM_COPY_UTIL",
    "memory.used": "FB_USED",
    "ecc.errors.corrected.volatile.total": "ECC_SBE_VOL_TOTAL",
    "ecc.errors.uncorrected.volatile.total": "ECC_DBE_VOL_TOTAL",
}
STAND_IN = """
import os, sys, time, torch
torch.set_num_threads(1)
if os.geteuid() == 0:  # other programs then do not delay it, as none would delay a GPU
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
while True:
    model(torch.zeros(1, 8)).square().mean().backward()
    time.sleep(float(sys.argv[1]) / 1e3)  # a fixed time, so that what comes on top of it shows
    optimizer.step()
    optimizer.zero_grad()
"""


class Start:
    """One start of the script under `flatout run`, which writes to OUT."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.folder = arguments.out
        settings = Settings(
            str(self.folder),
            arguments.block_s,
            arguments.seconds,
            arguments.warm_up,
            planted_share=arguments.plant,
            is_idle=arguments.idle,
        )
        flatout = [sys.executable, "-m", "flatout", "run", "--metrics-port", "0", "--"]
        job = [sys.executable, str(_HERE / "gpu_watch_job.py"), json.dumps(settings._asdict())]
        self._said = (self.folder / "job.log").open("w")
        self._process = subprocess.Popen(
            [*flatout, *job, *script_words(arguments)],
            cwd=arguments.script,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=self._said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def await_file(self, name: str, patience_s: float = _PATIENCE_S) -> None:
        """Wait until the job has written a file. Raise SystemExit if it ends, or takes too long."""
        deadline = time.monotonic() + patience_s
        while not (self.folder / name).exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the job did not get as far as `{name}`: {self.said()[-2000:]}")
            time.sleep(0.2)

    def said(self) -> str:
        return (self.folder / "job.log").read_text(errors="replace")

    @property
    def address(self) -> str:
        found = _METRICS.search(self.said())
        if found is None:
            raise SystemExit(f"no metrics are served: {self.said()[-2000:]}")
        return found[1]

    def watchers(self) -> list[int]:
        """Return `flatout run` and its children but the job itself."""
        children = psutil.Process(self.pid).children()
        exporters = [child.pid for child in children if "flatout.watch.exporter.process" in child.cmdline()]
        if not exporters:
            raise SystemExit("the exporter does not run")
        return [self.pid, *exporters]

    def end(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.pid, signal.SIGKILL)
        self._said.close()


def script_words(arguments: argparse.Namespace) -> list[str]:
    if arguments.stand_in is not None:
        path = arguments.out / "stand_in.py"
        path.write_text(STAND_IN)
        return [str(path), str(arguments.stand_in)]
    options = ["--dataset=random", f"--compile={arguments.compile}", "--eval_iters=1", "--log_interval=1"]
    options += [f"--gradient_accumulation_steps={arguments.micro_batches}", "--max_iters=1000000"]
    options += ["--eval_interval=1000000"]
    return ["train.py", *options]


# The counters.


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


def gpu_counters(page: str) -> dict[str, float]:
    """Return the counters of the job's GPU."""
    found = re.findall(r"^DCGM_FI_DEV_(\w+)\{[^}]*\} (\S+)$", page, re.MULTILINE)
    return {name: float(value) for name, value in found}


def counters(start: Start, device: int) -> dict[str, Any]:
    pairs = []
    with (start.folder / "counters.jsonl").open("a") as file:
        for _ in range(NUM_COUNTERS):
            before = smi(device)
            page = scrape(start.address)
            pairs.append({"before": before, "flatout": gpu_counters(page), "after": smi(device)})
            file.write(json.dumps(pairs[-1]) + "\n")
            file.flush()
    return {"num_scrapes": len(pairs), "by_name": differences(pairs)}


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


# The cost.


def cost(start: Start, seconds: float, num_skipped: int) -> dict[str, Any]:
    drawn: list[int] = []
    with scraper(start.address, start.folder / "scrapes") as scraping, screen(start.pid, drawn) as watching:
        pids = [*start.watchers(), scraping, watching]
        time.sleep(3)  # until both have started
        partial = start.folder / "watchers.part"
        partial.write_text(json.dumps(pids))
        partial.rename(start.folder / "watchers.json")
        try:
            start.await_file("done", seconds + _PATIENCE_S)
        finally:
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
    blocks = [json.loads(line) for line in (start.folder / "blocks.jsonl").read_text().splitlines()]
    scraped = [float(line) for line in (start.folder / "scrapes").read_text().split()]
    looked_on = {
        "scrapes_per_watched_s": scrapes_per_s(blocks, scraped, num_skipped),
        "bytes_drawn_by_watch": sum(drawn),
    }
    return compared(blocks, num_skipped) | looked_on


@contextmanager
def scraper(address: str, seen: Path) -> Iterator[int]:
    """Scrape once per second in a process of its own, and note the times of the scrapes in `seen`."""
    loop = "import sys, time, urllib.request\nwhile True:\n    urllib.request.urlopen(sys.argv[1], timeout=60).read()\n"
    loop += "    print(time.time(), flush=True)\n    time.sleep(1)\n"
    with seen.open("w") as file:
        process = subprocess.Popen([sys.executable, "-c", loop, address], stdout=file)
        try:
            yield process.pid
        finally:
            process.kill()
            process.wait()


@contextmanager
def screen(pid: int, drawn: list[int]) -> Iterator[int]:
    """Show the job with `flatout watch` on a terminal of 80x24, and note in `drawn` how many bytes it draws."""
    watching, terminal = pty.fork()
    if watching == 0:
        os.environ |= {"COLUMNS": "80", "LINES": "24", "TERM": "xterm"}
        os.execv(sys.executable, [sys.executable, "-m", "flatout", "watch", str(pid)])
    reader = threading.Thread(target=_read_all, args=(terminal, drawn), daemon=True)
    reader.start()
    try:
        yield watching
    finally:
        os.kill(watching, signal.SIGKILL)
        os.waitpid(watching, 0)


def _read_all(terminal: int, drawn: list[int]) -> None:
    with suppress(OSError):  # the terminal is gone
        while data := os.read(terminal, 1 << 16):
            drawn.append(len(data))


def compared(blocks: list[dict[str, Any]], num_skipped: int) -> dict[str, Any]:
    """Return what watching adds to a step, as a share of it: the mean over pairs of blocks, with its 95 % interval."""
    numbered = {block["number"]: block for block in blocks}
    pairs = []
    for number in range(0, len(blocks) - 1, 2):
        both = {numbered[each]["is_on"]: numbered[each]["step_s"][num_skipped:] for each in (number, number + 1)}
        if all(both.values()):
            pairs.append(both)
    result: dict[str, Any] = {
        "limit": LIMIT,
        "num_pairs": len(pairs),
        "num_steps": sum(len(steps) for both in pairs for steps in both.values()),
        "load_1min": round(os.getloadavg()[0], 1),
    }
    if len(pairs) < 3:
        return result
    watched_steps = [each for block in blocks if block["is_on"] for each in block["planted_s"][num_skipped:]]
    result["step_ms"] = 1e3 * fmean(fmean(both[False]) for both in pairs)
    result["planted_share"] = 1e3 * fmean(watched_steps) / result["step_ms"]
    for name, of_block in (("all steps", fmean), ("steps not half as long again", _usual), ("medians", median)):
        shares = [of_block(both[True]) / of_block(both[False]) - 1 for both in pairs]
        low, high = t_interval(shares)
        verdict = "below the limit" if high < LIMIT else "above the limit" if low > LIMIT else "undecided"
        result[name] = {"share": fmean(shares), "interval_95": [low, high], "verdict": verdict, "shares": shares}
    return result


def _usual(steps: list[float]) -> float:
    longest = TOO_LONG * median(steps)
    return fmean(step for step in steps if step <= longest)


def scrapes_per_s(blocks: list[dict[str, Any]], scraped: list[float], num_skipped: int) -> float | None:
    """Return how many scrapes fell into the steps of watched blocks that count, per second."""
    num, seconds = 0, 0.0
    for block in blocks:
        steps = block["step_s"]
        if not block["is_on"]:
            continue
        begin = block["began_unix_s"] + sum(steps[:num_skipped])
        end = block["began_unix_s"] + sum(steps)
        num += sum(begin <= at < end for at in scraped)
        seconds += end - begin
    return round(num / seconds, 3) if seconds else None


# The recording, and `flatout bench`.


def record(start: Start) -> dict[str, Any]:
    words = ["watch", str(start.pid), "--record", "3", "--out", str(start.folder / "recorded")]
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-m", "flatout", *words], capture_output=True, text=True, check=False)
    took_s = round(time.monotonic() - began, 1)
    return {"code": done.returncode, "took_s": took_s, "output": (done.stdout + done.stderr)[-6000:]}


def bench(out: Path, name: str, *options: str) -> dict[str, Any]:
    words = ["bench", *options, "--out", str(out / f"{name}.json"), "--force", "--json"]
    done = subprocess.run([sys.executable, "-m", "flatout", *words], capture_output=True, text=True, check=False)
    kept = powers(done.stdout) if name == "watts" else done.stdout[-6000:]
    return {"code": done.returncode, "output": kept, "errors": done.stderr[-1500:]}


def powers(printed: str) -> Any:
    """Return the measurements that have watts, and what was not measured."""
    try:
        ceilings = json.loads(printed)
    except ValueError:
        return printed[-6000:]
    names = ("name", "dtype", "shape", "value", "power_w", "rate_per_w")
    with_power = [each for each in ceilings.get("measurements", ()) if each.get("power_w") is not None]
    shown = [{name: each.get(name) for name in names} for each in with_power]
    return {"with_power": shown, "not_measured": ceilings.get("not_measured")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=120.0, help="of all blocks together")
    parser.add_argument("--block-s", type=float, default=4.0)
    parser.add_argument("--device", type=int, default=0, help="of nvidia-smi")
    parser.add_argument("--skip", type=int, default=3, help="steps at the beginning of a block that do not count")
    parser.add_argument("--warm-up", type=int, default=30, help="steps before the first block")
    parser.add_argument("--micro-batches", type=int, default=1, help="of a step")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--stand-in", type=float, metavar="MS", help="train a small model whose steps sleep so long")
    parser.add_argument("--plant", type=float, default=0.0, metavar="SHARE", help="make watched steps so much longer")
    parser.add_argument("--idle", action="store_true", help="leave the watchers alone")
    parser.add_argument("--watts-time", default="45s", help="of `flatout bench --only matmul`")
    parser.add_argument("parts", nargs="*", metavar="PART")
    arguments = parser.parse_args()
    arguments.parts = arguments.parts or list(PARTS)
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    if (arguments.script is None) == (arguments.stand_in is None) and set(arguments.parts) & set(OF_ONE_START):
        parser.error("pass --script or --stand-in")
    arguments.out = arguments.out.resolve()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in ("ready", "watchers.json", "done", "blocks.jsonl"):  # of an earlier run
        (arguments.out / name).unlink(missing_ok=True)
    results: dict[str, Any] = {}

    def run(part: str, measure: Callable[[], Any]) -> None:
        if part not in arguments.parts:
            return
        try:
            results[part] = measure()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the other parts are run all the same
            results[part] = {"error": repr(error)}
        (arguments.out / "gpu_watch.json").write_text(json.dumps(results, indent=1) + "\n")
        print(part, json.dumps(results[part])[:1500], flush=True)

    if set(arguments.parts) & set(OF_ONE_START):
        start = Start(arguments)
        try:
            start.await_file("ready")
            run("counters", lambda: counters(start, arguments.device))
            run("cost", lambda: cost(start, arguments.seconds, arguments.skip))
            run("record", lambda: record(start))
        finally:
            start.end()
    run("watts", lambda: bench(arguments.out, "watts", "--only", "matmul", "--time", arguments.watts_time))
    run("share", lambda: bench(arguments.out, "share", "--share", "--ranks", "2", "--time", "45s"))


if __name__ == "__main__":
    main()
