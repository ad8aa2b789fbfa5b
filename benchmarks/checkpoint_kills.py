"""Trainings that are killed at random moments, as `tests/checkpoint/test_kills.py` does, as often as is wanted.

    PYTHONPATH=src:. python benchmarks/checkpoint_kills.py [--kills 500] [--minutes 30] [--seed 100] [--out FILE]

Two gloo ranks train on the CPU, in turn with DDP and FSDP2, and save every second step. A kill -9 hits one rank or
both, at a random moment or while a checkpoint is being written; the writer is a thread of the rank. After each, the
next start must go on from the newest checkpoint and repeat the losses of an uninterrupted run; after every ten, the
training is let to its end and must have bitwise the uninterrupted run's weights. A start that finds less than was
committed, other losses or other weights ends the benchmark with what was found.
"""

from __future__ import annotations

import argparse
import collections
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.checkpoint.killing import Kills, train


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    outcomes: list[dict[str, Any]] = []
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        whole = {kind: train(Path(name) / "whole" / kind, kind) for kind in ("ddp", "fsdp")}
        number = 0
        while len(outcomes) < given.kills and time.monotonic() < until:
            kind = ("ddp", "fsdp")[number % 2]
            kills = Kills(Path(name) / str(number), whole[kind], kind=kind, seed=given.seed + number)
            outcomes += [kills.kill_once() for _ in range(min(10, given.kills - len(outcomes)))]
            ends[f"{kind}, {kills.finish()} bits"] += 1
            number += 1
    table = collections.Counter((one["kind"], one["who"], one["moment"]) for one in outcomes)
    result = {
        "kills": len(outcomes),
        "left a checkpoint half written": sum(one["partial"] > 0 for one in outcomes),
        "trainings to their end": dict(ends),
        "table": [
            {"kind": kind, "killed": who, "moment": moment, "number": n}
            for (kind, who, moment), n in sorted(table.items())
        ],
    }
    print(json.dumps(result, indent=1))
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
