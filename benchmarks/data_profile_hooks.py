"""What the hooks of `flatout data profile` cost a process that makes batches: switched on and off within one process.

    PYTHONPATH=src:. python benchmarks/data_profile_hooks.py [--pairs 60] [--out FILE]

`data_profile_overhead.py` compares two jobs, and two starts of one job can differ by 7 % for as long as they run, which
hides an overhead of 1 %. Here, one process makes batches of JPEG files, alternately in a block with the hooks as a
recording installs them and in a block without; which of the two comes first is drawn for each pair. The first batches
of a block are left out: they are always timed, and in a job they come once. The cost is the mean of the pairs' ratios
without the highest and the lowest tenth, with a 95 % interval, of the time and of the CPU time of the process with all
of its X
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmarks.data_profile_overhead import LIMIT, NUM_FILES, verdict_of
from benchmarks.data_profile_overhead_job import BATCH, Images
from benchmarks.kept_result import keep
from benchmarks.profile_overhead import trimmed_mean
from benchmarks.public_script_data import write_image
from torch.utils.data import DataLoader

from flatout.inside.loader_stages.batch_watch import hook_stages

NUM_FIRST, NUM_COUNTED = 16, 48  # batches of a block


class Block(NamedTuple):
    """Seconds of the counted batches, and the sum of all samples."""

    wall_s: float
    cpu_s: float
    total: float


def block_of(images: Images, folder: Path, *, is_hooked: bool) -> Block:
    undo: Callable[[], None] | None = hook_stages(folder) if is_hooked else None
    torch.manual_seed(0)
    batches = iter(DataLoader(images, BATCH))
    total = sum(float(pixels.sum()) for pixels, _ in islice(batches, NUM_FIRST))
    wall, cpu = time.perf_counter(), time.process_time()
    for pixels, _ in islice(batches, NUM_COUNTED):
        total += float(pixels.sum())
    block = Block(time.perf_counter() - wall, time.process_time() - cpu, total)
    if undo is not None:
        undo()
    return block


def measure(images: Images, folder: Path, num_pairs: int) -> dict[str, Any]:
    ratios: dict[str, dict[str, list[float]]] = {what: {"wall": [], "cpu": []} for what in ("hooked", "control")}
    totals = set()
    order = random.Random(0)
    for _ in range(num_pairs):
        for what, of_clocks in ratios.items():
            is_first = order.random() < 0.5
            blocks = [
                block_of(images, folder, is_hooked=what == "hooked" and is_other)
                for is_other in (is_first, not is_first)
            ]
            plain, other = blocks if not is_first else blocks[::-1]
            of_clocks["wall"].append(math.log(other.wall_s / plain.wall_s))
            of_clocks["cpu"].append(math.log(other.cpu_s / plain.cpu_s))
            totals |= {plain.total, other.total}
    return {
        what: {clock: overhead_of(values) for clock, values in of_clocks.items()} for what, of_clocks in ratios.items()
    } | {"samples_are_equal": len(totals) == 1, "batch_ms": 1e3 * plain.wall_s / NUM_COUNTED}


def overhead_of(log_ratios: list[float]) -> dict[str, Any]:
    mean, (low, high) = trimmed_mean(sorted(log_ratios))
    return {
        "overhead": math.expm1(mean),
        "interval_95": [math.expm1(low), math.expm1(high)],
        "num_pairs": len(log_ratios),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        files = Path(name, "files")
        files.mkdir()
        for number in range(NUM_FILES):
            write_image(files / f"{number}.jpeg", number)
        results = measure(Images(files), Path(name), arguments.pairs)
    verdicts = {clock: verdict_of(results["hooked"][clock]) for clock in ("wall", "cpu")}
    keep({"limit": LIMIT, "verdicts": verdicts, "load_average": os.getloadavg()[0], **results}, arguments.out)
    return int("above the limit" in verdicts.values() or not results["samples_are_equal"])


if __name__ == "__main__":
    sys.exit(main())
