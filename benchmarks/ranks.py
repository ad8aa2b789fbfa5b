"""What `flatout diagnose` costs with 1 to 1,000 ranks, on all cores and on one.

    .venv/bin/python benchmarks/ranks.py              # about an hour; writes results/ranks.json

The ranks are made from an example: each has one of its traces with numbers, group and device of its own, and its
communication kernels begin up to 20 us later, so that each collective waits for another rank. At most 1.2 GB on disk.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from many_ranks import Job
from measure import flatout, machine, peak_memory, repository, spread, timed, wait_for_quiet

SIZES = (1, 10, 100, 300, 1000)
MIN_FITTED = 10  # below, the start of the process counts, and all cores work on one trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", default="straggler", help="name of an archive in examples/traces")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="RANKS")
    parser.add_argument("--engines", nargs="+", default=["auto", "serial"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quiet-s", type=float, default=60, help="wait so long before a round for an idle machine")
    parser.add_argument("--out", type=Path, default=repository() / "benchmarks/results/ranks.json")
    args = parser.parse_args()
    job = Job(repository() / f"examples/traces/{args.example}.tar.xz")
    sizes = [size(job, num_ranks, args.engines, args.rounds, args.quiet_s) for num_ranks in args.sizes]
    fitted = {engine: exponent(sizes, engine) for engine in args.engines}
    result = {"machine": machine(), "example": args.example, "sizes": sizes, "exponent": fitted}
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(sizes))
    for engine, power in fitted.items():
        print(f"wall time grows as ranks to the power of {power:.2f} ({engine})")


def size(job: Job, num_ranks: int, names: Sequence[str], rounds: int, quiet_s: float) -> dict[str, Any]:
    """Rounds of one run an engine, in turn; then one run each for the memory."""
    with tempfile.TemporaryDirectory(prefix="flatout-benchmark-") as folder:
        num_bytes = job.write(Path(folder), num_ranks)
        engines = {e: [flatout(), "diagnose", folder, "--json", "--engine", e] for e in names}
        timed(engines[names[0]])  # files into the page cache
        runs = []
        for _ in range(rounds):
            wait_for_quiet(quiet_s)
            runs.append({engine: timed(command) for engine, command in engines.items()})
            print(num_ranks, {engine: round(run["wall_s"], 2) for engine, run in runs[-1].items()}, file=sys.stderr)
        return {
            "num_ranks": num_ranks,
            "num_bytes": num_bytes,
            "order": list(engines),
            "rounds": runs,
            "wall_s": {engine: spread([r[engine]["wall_s"] for r in runs]) for engine in engines},
            "memory": {engine: peak_memory(command) for engine, command in engines.items()},
        }


def exponent(sizes: Sequence[dict[str, Any]], engine: str) -> float:
    """Slope of log(wall time) over log(ranks), by least squares."""
    fitted = [each for each in sizes if each["num_ranks"] >= MIN_FITTED]
    if len(fitted) < 2:
        return math.nan
    ranks = [math.log(each["num_ranks"]) for each in fitted]
    walls = [math.log(each["wall_s"][engine]["median"]) for each in fitted]
    return statistics.linear_regression(ranks, walls).slope


def table(sizes: Sequence[dict[str, Any]]) -> str:
    """Markdown: of each engine its median wall time and range, the time a rank, and the peak memory."""
    lines = [
        "| Ranks | On disk, MB | Engine | Wall time, s | A rank, ms | Peak memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for each in sizes:
        for engine, wall in each["wall_s"].items():
            lines.append(
                f"| {each['num_ranks']:,} | {each['num_bytes'] / 1e6:,.1f} | {engine} "
                f"| {wall['median']:.2f} ({wall['min']:.2f} to {wall['max']:.2f}) "
                f"| {1000 * wall['median'] / each['num_ranks']:.0f} "
                f"| {each['memory'][engine]['peak_pss_bytes'] / 1e6:,.0f} |"
            )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
