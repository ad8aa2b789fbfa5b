"""Runs `flatout bench` as a process that has, unless a test says otherwise, little to measure.

What a test injects runs at the start of each Python process of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# In each rank: little memory, so that arrays and messages are small, and a check of collectives that needs no more; the
# two smallest matrices; no more rounds than are asked for, of repetitions of a millisecond. Otherwise a rank repeats
# its measurements for as long as `--time` allows.
_SMALL_RANK = """\
import os
if "RANK" in os.environ:
    import flatout.probe.limits
    import flatout.probe.ceilings.collectives
    import flatout.probe.ceilings.matmul
    import flatout.probe.ceilings.rounds
    flatout.probe.ceilings.matmul.CPU_SHAPES = flatout.probe.ceilings.matmul.CPU_SHAPES[:2]
    flatout.probe.limits.free_bytes = lambda: {free_bytes}
    flatout.probe.ceilings.collectives._AT_ONCE = 1 << 16
    flatout.probe.ceilings.rounds.MAX_ROUNDS = {num_rounds}
    flatout.probe.ceilings.rounds._CPU_SAMPLE_S = {sample_s}
"""
# With two ranks, the largest message of a collective is then 1 MiB.
FREE_BYTES = 64 << 20


def small(*, num_rounds: int = 3, free_bytes: int = FREE_BYTES, sample_s: float = 0.001) -> str:
    """Return an injection that lets each rank measure little. Three rounds are the fewest that give a result."""
    return _SMALL_RANK.format(free_bytes=free_bytes, num_rounds=num_rounds, sample_s=sample_s)


SMALL = small()


def bench(
    *arguments: str | Path, inject: str = SMALL, prefix: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """Run it. Each of its Python processes runs `inject` at its start: how a test puts a wrong kernel in."""
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(
            [*(prefix or (sys.executable,)), "-m", "flatout", "bench", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
            env=injected(Path(folder), inject),
        )


def injected(folder: Path, inject: str) -> dict[str, str]:
    """Return this environment, outside any job, with `inject` as the `sitecustomize` of each Python process."""
    (folder / "sitecustomize.py").write_text(inject)
    environment = dict(os.environ)
    for name in ("RANK", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        environment.pop(name, None)
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment.get("PYTHONPATH", "")])
    return environment


def content(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert "Traceback" not in done.stderr, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert (found["schema"], found["version"]) == ("flatout/ceilings", 1)
    return found
