"""Starts jobs from one process that has imported torch, which takes seconds, and has done nothing with it.

    python warm.py        each line of JSON on standard input is a job; each line on standard output an end, `RANK CODE`

A job: `arguments` (its script first), `environment`, and `ranks`, for each its variables and where its `output` and
`errors` go. A rank runs Flatout's `sitecustomize`, as Python does at its start, and then the script, whose
`import torch` is as ever, but for the modules of torch's own, which are there already: what Flatout does right after it
is done right after it. The rank ends as Python ends, too, with its hook for exceptions and all that is registered with
`atexit`, but is gone then: torch, which all ranks share, is not taken apart in each.

Not for a job that is diverted, as that begins before the import, nor for one whose ranks are spawned.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import json
import os
import runpy
import signal
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch._dynamo  # else imported by the first optimizer
import torch.distributed.checkpoint
import torch.distributed.fsdp  # noqa: F401 - for the scripts


class _TorchIsThere:
    """Finds torch, and runs none of it again."""

    def __init__(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        self._module = module
        self._spec = importlib.util.spec_from_file_location(
            "torch", module.__file__, loader=self, submodule_search_locations=list(module.__path__)
        )

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return self._spec if name == "torch" else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        pass


class _End:
    """The rank's, after all that the script and Flatout registered to be done at it."""

    def __init__(self) -> None:
        self.code = 0
        atexit.register(self._leave)  # before any other, so it is the last

    def run(self, script: str) -> None:
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            self.code = error.code if isinstance(error.code, int) else int(error.code is not None)
            raise
        except BaseException:
            self.code = 1
            raise

    def _leave(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.code)


def _begin(arguments: list[str], environment: dict[str, str], rank: dict[str, Any]) -> None:
    """What a process has from those that start it, and what Python does before it runs the script."""
    os.environ.clear()
    os.environ.update(environment | rank["variables"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, rank["output"]), (2, rank["errors"])):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    sys.argv[:] = arguments
    sys.path[:1] = [str(Path(arguments[0]).parent), *environment["PYTHONPATH"].split(os.pathsep)]
    sys.meta_path.insert(0, _TorchIsThere(sys.modules.pop("torch")))
    sys.modules.pop("sitecustomize", None)
    import sitecustomize  # noqa: F401 - Flatout's, by PYTHONPATH


def _wait(ranks: dict[int, int]) -> None:
    """Tell how each ended. After one that failed the others are ended, as launchers do."""
    while ranks:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        print(ranks.pop(pid), code, flush=True)
        if code:
            for other in ranks:
                os.kill(other, signal.SIGTERM)


def _serve() -> bool:
    """Whether this is a rank, whose script is to be run; else all was done that was asked for."""
    for line in sys.stdin:
        job = json.loads(line)
        ranks = {}
        for number, rank in enumerate(job["ranks"]):
            if (pid := os.fork()) == 0:
                _begin(job["arguments"], job["environment"], rank)
                return True
            ranks[pid] = number
        _wait(ranks)
    return False


gc.collect()
gc.freeze()  # ranks need not look through torch's own objects, again and again

if __name__ == "__main__" and _serve():
    _End().run(sys.argv[0])
