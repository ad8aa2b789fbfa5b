"""What the tests of the controller do with their Slurm: submit, look, and run `flatout schedule` beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.slurm import SlurmLab

PATIENCE_S = 150.0  # nothing takes so long on a machine that has time
NUM_NODES, GPUS_PER_NODE = 64, 8
# Counts, ten a second; each number is appended to its first argument, from where the last one left off. Only a job that
# Slurm has started again ends, ten numbers later: whatever a test does to the first start, it comes in time.
COUNTER = """\
#!/bin/sh
at=$(tail -n 1 "$1" 2>/dev/null | cut -d ' ' -f 1)
at=${at:-0}
echo "$at start $SLURMD_NODENAME ${SLURM_RESTART_COUNT:-0}" >> "$1"
last=1000000
[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && last=$((at + 10))
while [ "$at" -lt "$last" ]; do
    at=$((at + 1))
    echo "$at" >> "$1"
    sleep 0.1
done
"""


class Lab:
    """A Slurm of 64 nodes with 8 GPUs each, and a folder for one test."""

    def __init__(self, slurm: SlurmLab, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        self.log = folder / "schedule.jsonl"
        (folder / "count.sh").write_text(COUNTER)
        (folder / "sleep.sh").write_text("#!/bin/sh\nsleep $1\n")

    def submit(self, *options: str, sleep_s: float = 300, counts_in: str | None = None) -> str:
        """The number of a job that sleeps, or that counts in a file."""
        what = [str(self.folder / "sleep.sh"), str(sleep_s)]
        if counts_in is not None:
            what = [str(self.folder / "count.sh"), str(self.folder / counts_in)]
        output = ("--output=/dev/null", "--parsable")
        return self.slurm.run("sbatch", *output, *options, *what).strip()

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {str(job["job_id"]): job for job in json.loads(self.slurm.run("squeue", "--json"))["jobs"]}

    def state(self, job: str) -> str:
        return str(self.jobs()[job]["job_state"])

    def wait_for(self, what: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline, self.slurm.run("squeue", "-t", "all")
            time.sleep(0.2)

    def wait_for_state(self, job: str, state: str) -> None:
        self.wait_for(lambda: self.state(job) == state)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "flatout", "schedule", *arguments],
            env={**os.environ, **self.slurm.environment, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )

    def flatout(self, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> tuple[str, str]:
        """Standard output and error of `flatout schedule`."""
        process = self.start(*arguments, env=env)
        out, error = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, error
        return out, error

    def control(self, *arguments: str, code: int = 0, env: Mapping[str, str] | None = None) -> tuple[str, str]:
        """One look of the controller, and what it does."""
        return self.flatout("slurm", "--apply", "--once", "--log", str(self.log), *arguments, code=code, env=env)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()[1:]]

    def begun(self, kind: str) -> list[str]:
        """Targets of the actions of this kind in the log."""
        actions = [record["action"] for record in self.records() if record["event"] == "begin"]
        return [action["target"] for action in actions if action["kind"] == kind]

    def as_it_is(self) -> str:
        """All that Slurm tells of jobs, nodes and reservations, but for what changes by itself."""
        moving = ("RunTime=", "LastSchedEval=", "CPULoad=", "FreeMem=", "LastBusyTime=", "AccrueTime=", "StartTime=")
        moving += ("Scheduler=", "SchedNodeList=", "EndTime=", "Reason=", "BootTime=")  # the last is rounded each time
        told = [self.slurm.run("scontrol", "show", what, "-o") for what in ("job", "node", "reservation")]
        return "\n".join(" ".join(w for w in text.split(" ") if not w.startswith(moving)) for text in told)
