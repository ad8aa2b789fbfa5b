"""Runs `job.py` in processes of its own with patches, as the environment asks for them.

Ranks are started one by one, as torchrun would start them. Some jobs of each kind are started by torchrun itself. Where
a module uses the fixture `warm`, all of these processes are forked; tests with the fixture `cold` compare them with
processes that start as users start them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.slurm import free_port

import flatout

JOB = Path(__file__).with_name("job.py")
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
    by_torchrun: bool = False,
    **more: str,
) -> Done:
    (recording / ".state").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    environment |= {"PYTHONPATH": str(STARTUP), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **more}
    environment["FLATOUT_RECORDING" if is_recorded else "FLATOUT_REPORTS"] = str(recording)
    (recording / f"host-{os.uname().nodename}.json").touch()  # else each first rank starts a sampler, a fresh Python
    if patches:
        environment["FLATOUT_PATCHES"] = json.dumps([{"name": name, "parameters": given} for name, given in patches])
    start = _run_torchrun if by_torchrun else _run_ranks
    found = start(recording, [str(job), *map(str, arguments)], environment, ranks)
    for line in found.lines("patches-*.jsonl"):
        found.reports[line["patch"], line["rank"]] = line
    return found


def _run_torchrun(recording: Path, arguments: list[str], environment: dict[str, str], ranks: int) -> Done:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [sys.executable, *torchrun, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    return Done(done.returncode, done.stdout.splitlines(), done.stderr, recording)


def _run_ranks(recording: Path, arguments: list[str], environment: dict[str, str], ranks: int) -> Done:
    """As torchrun would start them, but for torchrun."""
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())} if ranks > 1 else {}
    outputs = [recording.parent / f"{recording.name}-{rank}.output" for rank in range(ranks)]
    errors = [recording.parent / f"{recording.name}-{rank}.errors" for rank in range(ranks)]
    started = []
    for rank in range(ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks} if meeting else {}
        variables = {name: str(value) for name, value in place.items()}
        with outputs[rank].open("w") as output, errors[rank].open("w") as error:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment | meeting | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
            )
        started.append(process)
    try:
        code = _first_failure(started)
    finally:
        for process in started:
            process.kill()
            process.wait()
    written, said = ("".join(file.read_text() for file in files) for files in (outputs, errors))
    assert code is not None, f"no end within {TIMEOUT_S} s:\n{written}\n{said}"
    return Done(code, written.splitlines(), said, recording)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Return the code of the rank that failed first, 0 if none did, and None if they did not end in time.

    After a rank that failed, the others are ended, as launchers do.
    """
    deadline = time.monotonic() + TIMEOUT_S
    running = list(ranks)
    first = 0
    while running:
        if time.monotonic() > deadline:
            return None
        ended = [rank for rank in running if rank.poll() is not None]
        running = [rank for rank in running if rank not in ended]
        for rank in ended:
            first = first or rank.returncode
        if first:
            for rank in running:
                rank.terminate()
        time.sleep(0.01)
    return first
