"""Runs `job.py` in processes of its own with patches, as the environment asks for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    recording: Path, *arguments: object, patches: Patches = (), ranks: int = 1, is_recorded: bool = False, **more: str
) -> Done:
    (recording / ".state").mkdir(parents=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")}
    environment |= {"PYTHONPATH": str(STARTUP), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "", **more}
    environment["FLATOUT_RECORDING" if is_recorded else "FLATOUT_REPORTS"] = str(recording)
    if patches:
        environment["FLATOUT_PATCHES"] = json.dumps([{"name": name, "parameters": given} for name, given in patches])
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    done = subprocess.run(
        [*command, str(JOB), *map(str, arguments)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )
    found = Done(done.returncode, done.stdout.splitlines(), done.stderr, recording)
    for line in found.lines("patches-*.jsonl"):
        found.reports[line["patch"], line["rank"]] = line
    return found
