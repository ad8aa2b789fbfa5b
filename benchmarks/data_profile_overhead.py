"""What `flatout data profile` costs a training that waits for its batches: beside the same training without it.

    PYTHONPATH=src:. python benchmarks/data_profile_overhead.py [--pairs 25] [--out FILE]

Two jobs run at the same time, one under `flatout data profile`, each with its worker, and Flatout's own processes with
theirs, on one core. After each block the jobs swap their cores, so two blocks make a pair, in which the differences
of the cores cancel. The time of a batch in a block is that between its steps. A pair gives one ratio, and the overhead
is the mean of the ratios without the highest and the lowest tenth, with a 95 % interval. The same is computed of the
CPU time of all processes of a job per batch, which other programs hardly change. All is done first with two jobs
without Flatout, which shows the noise of the method. The losses of both jobs must be the same bits.

The training does hardly anything, so the loader's worker is busy all the time: the worst case, as what the profile
adds to a worker is hidden where batches are ready in time.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.data_profile_overhead_job import STEP
from benchmarks.kept_result import keep
from benchmarks.profile_overhead import trimmed_mean
from benchmarks.public_script_data import write_image

from flatout.inside.protocol import File

LIMIT = 0.02
NUM_FILES = 64
SETTLE_S = 0.1  # after the jobs have swapped their cores
NUM_FIRST_STEPS = 20
START_S = 120.0
JOB = Path(__file__).with_name("data_profile_overhead_job.py")


class RunningJob:
    """One training with all processes that it has started, on one core."""

    def __init__(self, files: Path, folder: Path, *, is_profiled: bool) -> None:
        folder.mkdir()
        self._folder = folder
        self._steps = folder / "steps"
        flatout = [sys.executable, "-m", "flatout", "data", "profile", "--out", str(folder / "profile"), "--"]
        job = [sys.executable, str(JOB), str(files), str(self._steps)]
        with (folder / "log").open("wb") as log:
            words = [*flatout, *job] if is_profiled else job
            self._process = subprocess.Popen(words, stdout=log, stderr=log)

    def is_on(self, core: int) -> None:
        for pid in _tree(self._process.pid):
            with suppress(OSError):
                for thread in os.listdir(f"/proc/{pid}/task"):
                    os.sched_setaffinity(int(thread), {core})

    def cpu_ns(self) -> int:
        """Return the CPU time of all threads so far, as the scheduler counts it."""
        total = 0
        for pid in _tree(self._process.pid):
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    total += int((task / "schedstat").read_text().split()[0])
        return total

    def has_begun(self) -> bool:
        if self._process.poll() is not None:
            raise SystemExit((self._folder / "log").read_text())
        return self._steps.exists() and self._steps.stat().st_size >= NUM_FIRST_STEPS * STEP.size

    def end(self) -> list[tuple[int, float]]:
        """End the job and return its steps: times and losses."""
        (self._folder / "stop").touch()
        if self._process.wait() != 0:
            raise SystemExit((self._folder / "log").read_text())
        return list(STEP.iter_unpack(self._steps.read_bytes()))


def _tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [pid, *(below for child in children for below in _tree(child))]


def compare(files: Path, folder: Path, arguments: argparse.Namespace, *, is_profiled: bool) -> dict[str, Any]:
    """Return how much longer a batch takes in the second job, which is profiled or not."""
    cores = sorted(os.sched_getaffinity(0))[-2:]
    if len(cores) < 2:
        raise SystemExit("this needs two cores")
    jobs = [
        RunningJob(files, folder / "plain", is_profiled=False),
        RunningJob(files, folder / "other", is_profiled=is_profiled),
    ]
    until = time.monotonic() + START_S
    while not all(job.has_begun() for job in jobs) and time.monotonic() < until:
        time.sleep(0.1)
    blocks = [
        measured_block(jobs, cores if number % 2 else cores[::-1], arguments.block)
        for number in range(2 * arguments.pairs)
    ]
    plain, other = [job.end() for job in jobs]
    num_common = min(len(plain), len(other))
    wall = [math.log(batch_s(other, block) / batch_s(plain, block)) for block in blocks]
    cpu = [
        log_ratio + math.log(block.cpu_ns[1] / block.cpu_ns[0]) for log_ratio, block in zip(wall, blocks, strict=True)
    ]
    return {
        "wall": compared(wall),
        "cpu": compared(cpu),
        "batch_ms": 1e3 * statistics.median(batch_s(plain, block) for block in blocks),
        "num_losses_compared": num_common,
        "num_reports": len(list(folder.rglob(File.STAGES.glob))),  # of processes whose batches were timed
        "losses_are_equal": losses_of(plain, num_common) == losses_of(other, num_common),
    }


class Block(NamedTuple):
    began_ns: int
    ended_ns: int
    cpu_ns: tuple[int, ...]  # of each job


def measured_block(jobs: list[RunningJob], cores: list[int], seconds: float) -> Block:
    for job, core in zip(jobs, cores, strict=True):
        job.is_on(core)
    time.sleep(SETTLE_S)
    before = [job.cpu_ns() for job in jobs]
    began_ns = time.monotonic_ns()
    time.sleep(seconds)
    ended_ns = time.monotonic_ns()
    spent = [job.cpu_ns() - at for job, at in zip(jobs, before, strict=True)]
    return Block(began_ns, ended_ns, tuple(spent))


def compared(log_ratios: list[float]) -> dict[str, Any]:
    """Return the mean of the pairs of blocks, as a share more or less."""
    pairs = sorted(statistics.fmean(pair) for pair in zip(log_ratios[::2], log_ratios[1::2], strict=True))
    mean, (low, high) = trimmed_mean(pairs)
    return {
        "overhead": math.expm1(mean),
        "interval_95": [math.expm1(low), math.expm1(high)],
        "num_pairs": len(pairs),
        "pairs": [round(math.expm1(pair), 5) for pair in pairs],
    }


def batch_s(steps: list[tuple[int, float]], block: Block) -> float:
    times = [at for at, _ in steps if block.began_ns <= at <= block.ended_ns]
    return (times[-1] - times[0]) / (len(times) - 1) / 1e9


def losses_of(steps: list[tuple[int, float]], number: int) -> list[str]:
    return [loss.hex() for _, loss in steps[:number]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=25)
    parser.add_argument("--block", type=float, default=1.0, help="seconds of a block")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        files = Path(name, "files")
        files.mkdir()
        for number in range(NUM_FILES):
            write_image(files / f"{number}.jpeg", number)
        results = {}
        for what, is_profiled in (("control", False), ("profiled", True)):
            folder = Path(name, what)
            folder.mkdir()
            results[what] = compare(files, folder, arguments, is_profiled=is_profiled)
            print(what, results[what], file=sys.stderr, flush=True)
    profiled = results["profiled"]
    verdicts = {clock: verdict_of(profiled[clock]) for clock in ("wall", "cpu")}
    keep({"limit": LIMIT, "verdicts": verdicts, "load_average": os.getloadavg()[0], **results}, arguments.out)
    return int("above the limit" in verdicts.values() or not profiled["losses_are_equal"])


def verdict_of(overhead: dict[str, Any]) -> str:
    low, high = overhead["interval_95"]
    if high <= LIMIT:
        return "below the limit"
    return "above the limit" if low > LIMIT else "undecided"


if __name__ == "__main__":
    sys.exit(main())
