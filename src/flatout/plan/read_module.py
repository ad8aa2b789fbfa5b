"""The process that executes the user's model file: `python -m flatout.plan.read_module FILE.py NAME DESCRIPTOR`.

In: the file, the name in it, and the descriptor that the answer is written to (see `run_apart`, which starts this).
"""

from __future__ import annotations

import sys
from pathlib import Path

from flatout.plan.modules import read_module
from flatout.plan.run_apart import answer_and_exit


def main() -> None:
    path, name, descriptor = sys.argv[1:]
    answer_and_exit(f"{path}:{name}", lambda: read_module(Path(path), name), int(descriptor))


if __name__ == "__main__":
    main()
