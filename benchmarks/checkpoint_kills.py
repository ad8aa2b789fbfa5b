"""Trainings that are killed at random moments, as `tests/checkpoint/test_kills.py` does, as often as is wanted.

    PYTHONPATH=src:. python benchmarks/checkpoint_kills.py [--kills 500] [--minutes 30] [--at-once 4] [--out FILE]

Two gloo ranks train on the CPU, in turn with DDP and FSDP2, and save every second step. A kill -9 hits one rank or
both, at a random moment or while a checkpoint is being written; the writer is a thread of the rank. After each, the
next start must go on from the newest checkpoint and repeat the losses of an uninterrupted run; after every ten, the
training is let to its end and must have bitwise the uninterrupted run's weights. A start that finds less than was
committed, other losses or other weights ends the benchmark with what was found.
"""

from __future__ import annotations

import collections
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.kept_result import keep, kill_options
from tests.checkpoint import ranks
from tests.checkpoint.killing import Kills, train

KINDS = ("ddp", "fsdp")
PER_TRAINING = 10
BUSY_TIMEOUT_S = 900.0  # of a training: this one runs beside whatever else the machine does


def main() -> int:
    parser = kill_options(__doc__, kills=500, seed=100)
    parser.add_argument("--at-once", type=int, default=1, help="trainings beside each other: they wait more than work")
    given = parser.parse_args()
    ranks.TIMEOUT_S = BUSY_TIMEOUT_S
    until = time.monotonic() + 60 * given.minutes
    outcomes: list[dict[str, Any]] = []
    ends: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(given.at_once) as pool:
        whole = {kind: train(Path(name) / "whole" / kind, kind) for kind in KINDS}

        def ten(number: int) -> tuple[list[dict[str, Any]], str] | None:
            if time.monotonic() > until:
                return None
            kind = KINDS[number % 2]
            kills = Kills(Path(name) / str(number), whole[kind], kind=kind, seed=given.seed + number)
            killed = [kills.kill_once() for _ in range(min(PER_TRAINING, given.kills - PER_TRAINING * number))]
            return killed, f"{kind}, {kills.finish()} bits"

        for done in pool.map(ten, range(-(-given.kills // PER_TRAINING))):
            if done is not None:
                outcomes += done[0]
                ends[done[1]] += 1
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
    keep(result, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
