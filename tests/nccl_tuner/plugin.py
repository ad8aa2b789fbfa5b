"""The tuner plugin and its harness, compiled once per run of the tests, with all warnings and the address sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flatout.inside.protocol import Variable
from flatout.nccl_tuner.build import SOURCE
from flatout.nccl_tuner.table_file import checksum

HARNESS = Path(__file__).with_name("harness.c")
BROADCAST, REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = range(5)
TREE, RING, COLLNET_DIRECT, COLLNET_CHAIN, NVLS, NVLS_TREE, PAT = range(7)
LL, LL128, SIMPLE = range(3)
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g")
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
# Tree and Ring can be used with all protocols but Tree/LL128, NVLS with Simple; everything else is excluded.
COSTS = (*(30.0, -1.0, 50.0), *(20.0, 40.0, 60.0), *[-1.0] * 6, *(-1.0, -1.0, 70.0), *[-1.0] * 6)


@dataclass(frozen=True)
class Answer:
    code: int
    channels: int
    costs: tuple[float, ...]

    @property
    def changed(self) -> dict[tuple[int, int], float]:
        """The cells that differ from COSTS, by algorithm and protocol."""
        cells = enumerate(zip(self.costs, COSTS, strict=True))
        return {divmod(place, 3): cost for place, (cost, before) in cells if cost != before}


@dataclass
class Output:
    text: str
    answers: list[Answer] = field(default_factory=list)
    logs: list[tuple[int, str]] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)  # of begin and end
    ns: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Plugin:
    library: Path
    harness: Path

    def run(self, lines: Sequence[str], version: int = 6, environment: Mapping[str, str] | None = None) -> Output:
        """What the plugin answers; the harness fails the test if it crashes, leaks, or the sanitizer finds anything."""
        done = subprocess.run(
            [self.harness, self.library, str(version)],
            input="\n".join(lines) + "\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"ASAN_OPTIONS": "detect_leaks=1"} | dict(environment or {}),
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
        return _output(done.stdout)

    def ask(
        self,
        table: Path,
        *questions: tuple[int, int],
        ranks: int = 2,
        nodes: int = 1,
        version: int = 6,
        compared: str | None = None,
        costs: Sequence[float] = COSTS,
    ) -> Output:
        """What the plugin answers with this table, which counts as compared unless `compared` says something else."""
        lines = [f"begin {ranks} {nodes}", f"costs {len(costs) // 3} 3 " + " ".join(map(str, costs))]
        lines += [f"ask {collective} {num_bytes}" for collective, num_bytes in questions]
        known = checksum(table.read_bytes()) if compared is None and table.is_file() else compared or ""
        variables = {Variable.NCCL_TABLE: str(table), Variable.NCCL_TABLE_COMPARED: known}
        return self.run([*lines, "end"], version, variables)


def compile_plugin(folder: Path, *, sanitized: bool) -> Plugin:
    compiler = shutil.which("cc") or "gcc"
    more = SANITIZED if sanitized else ("-O2",)
    built = Plugin(library=folder / "plugin.so", harness=folder / "harness")
    for command in (
        [compiler, *STRICT, *more, "-fPIC", "-shared", "-fvisibility=hidden", "-o", built.library, SOURCE],
        [compiler, *STRICT, *more, "-o", built.harness, HARNESS, "-ldl"],
    ):
        subprocess.run(command, check=True, timeout=120)
    return built


def _output(text: str) -> Output:
    output = Output(text)
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        words = rest.split()
        if kind == "answer":
            output.answers.append(Answer(int(words[0]), int(words[1]), tuple(map(float, words[2:]))))
        elif kind == "log":
            output.logs.append((int(words[0]), rest.partition(" ")[2]))
        elif kind in ("begin", "end"):
            output.codes.append(int(words[0]))
        elif kind == "ns":
            output.ns.append(float(words[0]))
    return output
