"""Runs `job.py` in processes of its own with patches, as the environment asks for them.

Most are forked by `warm.py`, which has imported torch. Others (`is_warm=False`) start as users start them, with ranks
by torchrun: where the start counts, and some of each kind, to be compared with forked ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tests.slurm import free_port

import flatout

JOB = Path(__file__).with_name("job.py")
WARM = Path(__file__).with_name("warm.py")
STARTUP = Path(flatout.__file__).parent / "inside" / "startup"
TIMEOUT_S = 150
Patches = Sequence[tuple[str, dict[str, Any]]]


@dataclass
class Done:
    code: int
    output: list[str]
    errors: str
    recording: Path
    reports: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)  # by patch and rank

    def said(self, word: str) -> str:
        """What the job printed after `word`."""
        return next(line.partition(" ")[2] for line in self.output if line.split(" ")[0] == word)

    @property
    def losses(self) -> list[float]:
        return [float.fromhex(text) for text in self.said("losses").split()]

    def lines(self, pattern: str) -> list[dict[str, Any]]:
        return [json.loads(line) for file in self.recording.glob(pattern) for line in file.read_text().splitlines()]

    @property
    def log(self) -> str:
        return "".join(file.read_text() for file in self.recording.glob("inside-*.log"))


def run(
    recording: Path,
    *arguments: object,
    job: Path = JOB,
    patches: Patches = (),
    ranks: int = 1,
    is_recorded: bool = False,
    is_warm: bool = True,
    **more: str,
) -> Done:
    (recording / ".state").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    environment |= {"PYTHONPATH": str(STARTUP), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **more}
    environment["FLATOUT_RECORDING" if is_recorded else "FLATOUT_REPORTS"] = str(recording)
    if patches:
        environment["FLATOUT_PATCHES"] = json.dumps([{"name": name, "parameters": given} for name, given in patches])
    start = _run_warm if is_warm else _run_cold
    found = start(recording, [str(job), *map(str, arguments)], environment, ranks)
    for line in found.lines("patches-*.jsonl"):
        found.reports[line["patch"], line["rank"]] = line
    return found


def _run_cold(recording: Path, arguments: list[str], environment: dict[str, str], ranks: int) -> Done:
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout.splitlines(), done.stderr, recording)


@cache
def _warm() -> subprocess.Popen[str]:
    """One for all tests of this process; it ends with them."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    return subprocess.Popen(
        ["setpriv", "--pdeathsig", "KILL", sys.executable, str(WARM)],
        env={**environment, "PYTHONPATH": "", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _run_warm(recording: Path, arguments: list[str], environment: dict[str, str], ranks: int) -> Done:
    """As torchrun would start them, but for torchrun."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if ranks > 1 else {}
    asked = []
    for rank in range(ranks):
        variables = (
            {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks} if meeting else {}
        )
        places = {name: str(recording.parent / f"{recording.name}-{rank}.{name}") for name in ("output", "errors")}
        asked.append({"variables": meeting | {name: str(value) for name, value in variables.items()}, **places})
    warm = _warm()
    assert warm.stdin is not None and warm.stdout is not None
    timeout = threading.Timer(TIMEOUT_S, os.killpg, (warm.pid, 9))
    timeout.start()
    try:
        job = {"arguments": arguments, "environment": environment, "ranks": asked}
        print(json.dumps(job), file=warm.stdin, flush=True)
        ends = [warm.stdout.readline() for _ in asked]
    finally:
        timeout.cancel()
    output, errors = ("".join(Path(one[name]).read_text() for one in asked) for name in ("output", "errors"))
    if not all(ends):
        _warm.cache_clear()
    assert all(ends), f"no end within {TIMEOUT_S} s:\n{output}\n{errors}"
    codes = [int(end.split()[1]) for end in ends]
    return Done(next((code for code in codes if code), 0), output.splitlines(), errors, recording)
