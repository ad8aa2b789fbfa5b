"""Jobs under `flatout run` that are killed at random moments: is each sample of an epoch used exactly once?

    PYTHONPATH=src:. python benchmarks/order_kills.py [--kills 30] [--minutes 14] [--seed 1] [--out FILE]

Jobs of one or two ranks (`tests/checkpoint/order_job.py`) train three epochs with each kind of loader, with and without
workers. A kill -9 at a random moment hits one rank, which `flatout run` restarts, or the whole job with its `flatout
run`, which is then started again. Each step must use the samples of the uninterrupted job's step, and over all starts
each sample of an epoch must be used once, if a step that is repeated after a checkpoint counts once. Loaders of
torchdata are tried where it is installed. The result is written after each job, so an interrupted run leaves what it
showed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from benchmarks.kept_result import keep, kill_options
from tests.checkpoint import order_job
from tests.checkpoint.order_lines import Step, problems, starts_of, uses_per_epoch, wrong_samples

NUM_EPOCHS = 3
KILLS_PER_JOB = 3
PAUSE_S = 0.05
START_S = 60.0
JOBS = [("shuffled", 2, 1), ("distributed", 2, 2), ("persistent", 2, 1), ("distributed", 0, 2), ("shuffled", 0, 1)]
JOBS += [("sequential", 2, 1)]
JOBS += [("torchdata", workers, 1) for workers in (2, 0) if find_spec("torchdata")]


class KilledJob:
    """One job, from its first start to its end."""

    def __init__(self, folder: Path, kind: str, workers: int, num_ranks: int, draw: random.Random) -> None:
        self._folder = folder
        self._num_ranks = num_ranks
        self._draw = draw
        self.lines = [folder.with_name(f"{folder.name}-{rank}.txt") for rank in range(num_ranks)]
        self.kills: dict[str, int] = {}
        num_steps = NUM_EPOCHS * order_job.NUM_SAMPLES // (order_job.BATCH * num_ranks)
        options = ["--kind", kind, "--workers", str(workers), "--pause", str(PAUSE_S), "--lines", str(folder)]
        job = [order_job.__file__, str(folder), str(num_steps), f"{folder}.result", *options]
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks)]
        flatout = [sys.executable, "-m", "flatout", "run", "--max-restarts", "9", "--take-over"]
        launcher = torchrun if num_ranks > 1 else []
        self._command = [*flatout, "--checkpoint-folder", str(folder), "--", sys.executable, *launcher, *job]

    def run(self, num_kills: int) -> None:
        """Run the job to its end, with so many kills."""
        code = -signal.SIGKILL
        while code == -signal.SIGKILL:
            with open(f"{self._folder}.log", "ab") as log:
                job = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)
            while num_kills and job.poll() is None:
                num_kills -= self._wait_and_kill(job)
            code = job.wait(timeout=300)
        if code != 0:
            raise SystemExit(f"the job ended with code {code}:\n{Path(f'{self._folder}.log').read_text()}")

    def _wait_and_kill(self, job: subprocess.Popen[bytes]) -> int:
        """Kill after some more steps than now; return the number of kills."""
        wanted = self._num_lines() + self._draw.randrange(4, 14)
        until = time.monotonic() + START_S
        while self._num_lines() < wanted and time.monotonic() < until:
            if job.poll() is not None:
                return 0
            time.sleep(0.01)
        time.sleep(self._draw.uniform(0, PAUSE_S))
        what = self._draw.choice(["one rank", "the whole job"])
        ranks = _ranks_below(job.pid)
        targets = [job.pid, *_all_below(job.pid)]
        if what == "one rank":
            targets = self._draw.sample(ranks, min(1, len(ranks)))
        for pid in targets:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if targets:
            self.kills[what] = self.kills.get(what, 0) + 1
        return min(len(targets), 1)

    def _num_lines(self) -> int:
        return self.lines[0].read_text().count("\n") if self.lines[0].exists() else 0

    def starts(self) -> list[list[tuple[int, dict[int, Step]]]]:
        """Return the starts of each rank."""
        return [starts_of(path.read_text()) for path in self.lines]


def _all_below(pid: int) -> list[int]:
    """Return the descendants of a process."""
    children: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    return [one for child in children for one in (child, *_all_below(child))]


def _ranks_below(pid: int) -> list[int]:
    """Return the training processes: those that run the job's script, without their workers."""
    with_script = [one for one in _all_below(pid) if _runs_script(one)]
    workers = {below for one in with_script for below in _all_below(one)}
    return [one for one in with_script if one not in workers]


def _runs_script(pid: int) -> bool:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return any(word == order_job.__file__.encode() for word in words[1:4]) and b"torch.distributed.run" not in words
    return False


def judged(job: KilledJob, whole: KilledJob) -> dict[str, Any]:
    """Compare a killed job with the uninterrupted one."""
    wrong: list[str] = []
    used = []
    for starts, whole_starts in zip(job.starts(), whole.starts(), strict=True):
        wrong += problems(starts, whole_starts[0][1])
        used.append({step: rows for _, steps in starts for step, rows in steps.items()})
    return {
        "kills": job.kills,
        "begins at steps": [first for first, _ in job.starts()[0]],
        "steps that differ": wrong,
        "samples that were not used once": wrong_samples(uses_per_epoch(used), NUM_EPOCHS),
    }


def main() -> int:
    given = kill_options(__doc__, kills=30, seed=1).parse_args()
    until = time.monotonic() + 60 * given.minutes
    draw = random.Random(given.seed)
    results = []
    num_kills = 0
    with tempfile.TemporaryDirectory() as name:
        whole: dict[tuple[str, int, int], KilledJob] = {}
        while num_kills < given.kills and time.monotonic() < until:
            kind, workers, num_ranks = JOBS[len(results) % len(JOBS)]
            key = (kind, workers, num_ranks)
            if key not in whole:
                whole[key] = KilledJob(Path(name, f"whole-{len(whole)}"), *key, draw)
                whole[key].run(0)
            job = KilledJob(Path(name, f"killed-{len(results)}"), *key, draw)
            job.run(KILLS_PER_JOB)
            results.append({"loader": kind, "workers": workers, "ranks": num_ranks, **judged(job, whole[key])})
            num_kills += sum(job.kills.values())
            print(results[-1], file=sys.stderr, flush=True)
            is_wrong = any(map(_is_wrong, results))
            conditions = {"seed": given.seed, "torch": torch.__version__, "load_average": os.getloadavg()[1]}
            keep(
                {"kills": num_kills, "jobs": len(results), "wrong": is_wrong, **conditions, "results": results},
                given.out,
            )
    return int(any(map(_is_wrong, results)))


def _is_wrong(result: dict[str, Any]) -> bool:
    return bool(result["steps that differ"] or result["samples that were not used once"])


if __name__ == "__main__":
    sys.exit(main())
