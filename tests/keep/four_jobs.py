"""Four jobs on two machines that share one ledger folder: one fails by a bug, and the others must not notice.

`bug` and `twin` run on the first machine, `well` on the second, and `pair` on both. `twin` has the same command as
`well`, in the same folder. What is right is known in advance: each job has the exit code that it would have alone,
`flatout run` speaks only of the job's own failure, and the ledger has each job once, with its own failures. If all have
one name (FLATOUT_JOB), `twin` and `well` agree in name and command, so they count as two nodes of one job.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flatout.keep.ledger_merge import read_all

Start = Callable[[int, Sequence[str], Path, Mapping[str, str]], "subprocess.Popen[bytes]"]
BUG = "import time; time.sleep({}); raise ValueError('job A has a bug')"
WELL = "import time; time.sleep({}); print('done', flush=True)"
_NAMESAKE = "runs another job named 100"


@dataclass(frozen=True)
class Part:
    """What one machine runs of a job."""

    job: str
    node: int
    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How the four jobs ended: by part, such as `pair on 1`, its exit code and what Flatout said."""

    codes: dict[str, int]
    said: dict[str, list[str]]
    num_runs: int
    num_failures: int
    num_unfinished: int

    def wrong(self, *, restarts_of_pair: int, has_one_name: bool) -> list[str]:
        """Return what is not as it would be if each job were alone; nothing if all is right."""
        found = []
        for part, code in self.codes.items():
            expected = 1 if part.startswith("bug") else 0
            if code != expected:
                found.append(f"{part} ended with code {code} instead of {expected}")
        for part, lines in self.said.items():
            lines = [line for line in lines if not (has_one_name and _NAMESAKE in line)]
            found += [f"{part} said: {line}" for line in lines if _is_about_another(part, line, restarts_of_pair)]
        num_jobs = 3 if has_one_name else 4
        if (self.num_runs, self.num_unfinished) != (num_jobs, 0):
            found.append(f"the ledger has {self.num_runs} runs, {self.num_unfinished} of them without an end")
        if self.num_failures != 1 + restarts_of_pair:
            found.append(f"the ledger has {self.num_failures} failures instead of {1 + restarts_of_pair}")
        return found


def _is_about_another(part: str, line: str, restarts_of_pair: int) -> bool:
    """Whether Flatout said something in a job that nothing happened to, or spoke of another job."""
    if "job A has a bug" in line:
        return not part.startswith("bug")
    if part.startswith("bug"):
        return line != "flatout: a restart would not help (mistake)"
    return not (part.startswith("pair") and restarts_of_pair) or "no status from" in line or "does not restart" in line


def light_parts(bug_after_s: float, well_after_s: float) -> list[Part]:
    """Return jobs without torch; the tasks of `pair` are of one Slurm step."""
    bug = (sys.executable, "-c", BUG.format(bug_after_s))
    well = (sys.executable, "-c", WELL.format(well_after_s))
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2"}
    return [
        Part("bug", 0, bug),
        Part("twin", 0, well),
        Part("well", 1, well),
        *(Part("pair", node, well, {**slurm, "SLURM_PROCID": str(node)}) for node in (0, 1)),
    ]


def run_four_jobs(parts: Sequence[Part], folder: Path, start: Start, *, limit_s: float) -> Outcome:
    """Run all parts at once in `folder`, with the ledger folder `books` in it."""
    (folder / "books").mkdir()
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for part in parts:
            name = f"{part.job} on {part.node}"
            run = [sys.executable, "-m", "flatout", "run", "--max-restarts", "2", "--ledger", "books", "--"]
            started[name] = start(part.node, [*run, *part.command], folder / f"{name}.txt", part.variables)
        deadline = time.monotonic() + limit_s
        codes = {name: process.wait(max(deadline - time.monotonic(), 1)) for name, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()
    totals = read_all([folder / "books"])
    said = {name: _said(folder / f"{name}.txt") for name in started}
    return Outcome(codes, said, totals.num_runs, totals.num_failures, totals.num_unfinished)


def _said(log: Path) -> list[str]:
    lines = log.read_text(errors="replace").splitlines()
    return [line for line in lines if line.startswith("flatout: ")]


def ledger_events(folder: Path) -> dict[str, list[str]]:
    """Return the events in each ledger, for what a failed check shows."""
    return {
        path.name: [json.loads(line)["event"] for line in path.read_text().splitlines()]
        for path in sorted((folder / "books").glob("*.jsonl"))
    }
