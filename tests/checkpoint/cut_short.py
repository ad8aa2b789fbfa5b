"""Save steps 2, 3 and 3 again, and be killed before the N-th change to the folder, for every N; then resume.

    python cut_short.py FOLDER        prints a line for each N: what was killed, and `step value` of what is resumed

Each time in a forked process, from one that has imported torch and done nothing with it. The value is the only weight.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy.random  # noqa: F401 - else each of the forked processes imports it, when its random state is saved
import torch

from flatout.checkpoint import Checkpointer

CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.link", "os.rmdir", "shutil.rmtree", "os.utime"}


def train(folder: Path, local: Path | None, values: list[tuple[int, float]]) -> tuple[int, float]:
    """Resume, save these values as these steps; what was resumed."""
    model = torch.nn.Linear(1, 1, bias=False)
    model.weight.data.fill_(0.0)
    with Checkpointer(folder, model=model, local=local, keep=1) as checkpointer:
        step = checkpointer.resume()
        resumed = step, model.weight.item()
        for step, value in values:
            model.weight.data.fill_(value)
            checkpointer.save(step, wait=True)
    return resumed


def kill_before(number: int, folder: Path) -> None:
    count = 0

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal count
        is_write = event == "open" and isinstance(given[2], int) and given[2] & (os.O_WRONLY | os.O_RDWR)
        if (event in CHANGES or is_write) and str(folder) in str(given[0]):
            count += 1
            if count == number:
                what = event, *(Path(str(one)).name for one in given[:2] if str(folder) in str(one))
                os.write(1, (" ".join(what) + ": ").encode())
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def forked(function: Any, *given: Any) -> int:
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            function(*given)
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def killed(number: int, folder: Path, local: Path | None) -> None:
    kill_before(number, folder.parent)
    train(folder, local, [(2, 2.0), (3, 3.0), (3, 4.0)])


def resumed(folder: Path, local: Path | None, values: list[tuple[int, float]]) -> None:
    print(*train(folder, local, values), end="; ")


def main(parent: Path, has_local: bool) -> int:
    def places(name: str) -> tuple[Path, Path | None]:
        return parent / name / "ckpt", parent / name / "fast" if has_local else None

    number, code = 0, forked(train, *places("first"), [(1, 1.0)])
    while code == (-signal.SIGKILL if number else 0):
        number += 1
        folder, local = places(str(number))
        shutil.copytree(parent / "first", folder.parent)
        code = forked(killed, number, folder, local)
        # The second start must find the same as the first, and save as ever.
        if forked(resumed, folder, local, []) or forked(resumed, folder, local, [(9, 9.0)]):
            return 1
        print(*sorted(path.name for path in folder.iterdir()), flush=True)
        shutil.rmtree(folder.parent)
    return code


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(Path(sys.argv[1]), len(sys.argv) > 2))
