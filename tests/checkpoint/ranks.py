"""Runs `training.main` as one or several ranks, which the tests can watch and kill.

The ranks are forked from one process that has imported torch, which takes seconds, and has done nothing with it.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TIMEOUT_S = 60.0
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.checkpoint.preloaded"])


@dataclass(kw_only=True)
class Done:
    codes: list[int]
    outputs: list[str]
    errors: list[str]
    digest: str | None  # of the weights at the end

    @property
    def start(self) -> int:
        """The step that rank 0 began at."""
        return int(self.outputs[0].split()[1])

    @property
    def losses(self) -> dict[int, str]:
        """The losses of rank 0, by step."""
        lines = [line.split() for line in self.outputs[0].splitlines() if line.startswith("step ")]
        return {int(step): loss for _, step, loss in lines}


def run(
    folder: Path,
    num_steps: int,
    *options: str,
    kind: str = "plain",
    num_ranks: int = 1,
    watch: Callable[[list[Any], list[Path]], None] | None = None,
    environment: Mapping[str, str] | None = None,
    file_limit: int | None = None,
    job: str = "tests.checkpoint.training",
) -> Done:
    """Run the ranks to their end; `job` is the module whose `main` each calls.

    `watch` gets the processes and their outputs meanwhile. A rank that outlives a failed one by 5 s is ended, as a
    launcher would do.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    name = f"{folder.name}.{time.monotonic_ns()}"
    outputs = [folder.with_name(f"{name}.{rank}.out") for rank in range(num_ranks)]
    result = folder.with_name(f"{name}.result")
    ranks = []
    for rank, output in enumerate(outputs):
        output.touch()
        variables = dict(environment or {}) | {
            "RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
            "MEETING_PLACE": str(folder.with_name(f"{name}.meeting-place")),  # no port that another test may take
        }
        arguments = [str(folder), str(num_steps), str(result), "--kind", kind, *options]
        ranks.append(_CONTEXT.Process(target=_rank, args=(job, arguments, variables, str(output), file_limit)))
        ranks[-1].start()
    try:
        if watch is not None:
            watch(ranks, outputs)
        _end_all(ranks)
    finally:
        for rank in ranks:
            if rank.is_alive():
                os.kill(rank.pid, signal.SIGKILL)
            rank.join()
    return Done(
        codes=[rank.exitcode for rank in ranks],
        outputs=[one.read_text() for one in outputs],
        errors=[one.with_suffix(".err").read_text() for one in outputs],
        digest=result.read_text() if result.exists() else None,
    )


def _rank(job: str, arguments: list[str], variables: dict[str, str], output: str, file_limit: int | None) -> None:
    os.environ |= variables
    for number, path in ((1, output), (2, str(Path(output).with_suffix(".err")))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    if file_limit is not None:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    code = importlib.import_module(job).main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _end_all(ranks: list[Any]) -> None:
    until = time.monotonic() + TIMEOUT_S
    while any(rank.is_alive() for rank in ranks) and time.monotonic() < until:
        if any(rank.exitcode not in (None, 0) for rank in ranks):
            until = min(until, time.monotonic() + 5)
        time.sleep(0.02)
