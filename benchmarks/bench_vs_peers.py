"""`flatout bench` against tools that measure the same, in the same rounds: STREAM's kernels in C, and fio.

    python benchmarks/bench_vs_peers.py --path DIR [--rounds 5] > benchmarks/results/bench_vs_peers.json

Each round runs, in turn: STREAM's copy and triad (McCalpin's kernels, compiled here with OpenMP: the best of 20, which
STREAM reports, and the median), fio's reads on a file of its own below DIR (direct, 1 MiB in sequence by one and by 8
jobs, 4 KiB and 128 KiB at random by 8 jobs: as many as Flatout has), and Flatout's measurements of the same kind. A
ratio is Flatout's rate over the peer's in the same round. Needs torch, gcc and fio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

STREAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <omp.h>
#define N (64L << 20)  /* floats: 256 MiB an array */
#define TIMES 20
static int order(const void *a, const void *b) { return *(double *)a < *(double *)b ? -1 : 1; }
int main(void) {
  float *a = aligned_alloc(64, N * 4), *b = aligned_alloc(64, N * 4), *c = aligned_alloc(64, N * 4);
  double copy[TIMES], triad[TIMES];
#pragma omp parallel for
  for (long i = 0; i < N; i++) { a[i] = 1; b[i] = 2; c[i] = 0; }
  for (int t = 0; t < TIMES; t++) {
    double began = omp_get_wtime();
#pragma omp parallel for
    for (long i = 0; i < N; i++) c[i] = a[i];
    copy[t] = omp_get_wtime() - began;
    began = omp_get_wtime();
#pragma omp parallel for
    for (long i = 0; i < N; i++) a[i] = b[i] + 3.0f * c[i];
    triad[t] = omp_get_wtime() - began;
  }
  qsort(copy, TIMES, 8, order); qsort(triad, TIMES, 8, order);
  printf("{\"copy_best\": %g, \"copy_median\": %g, \"triad_best\": %g, \"triad_median\": %g}\n",
         8.0 * N / copy[0], 8.0 * N / copy[TIMES / 2], 12.0 * N / triad[0], 12.0 * N / triad[TIMES / 2]);
  return a[N / 2] > 1e30f;
}
"""
FIO = {
    "storage_sequential_read 1 thread": ("--rw=read", "--bs=1M", "--numjobs=1"),
    "storage_sequential_read 8 threads": ("--rw=read", "--bs=1M", "--numjobs=8", "--offset_increment=12%"),
    "storage_random_read 4 KiB": ("--rw=randread", "--bs=4k", "--numjobs=8"),
    "storage_random_read 128 KiB": ("--rw=randread", "--bs=128k", "--numjobs=8"),
}


def output(command: list[str], **options: Any) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, **options).stdout


def stream(program: Path) -> dict[str, float]:
    found = json.loads(output([str(program)]))
    return {"memory_copy": found["copy_median"], "memory_triad": found["triad_median"]} | {
        f"{name} (STREAM's best)": found[key]
        for name, key in (("memory_copy", "copy_best"), ("memory_triad", "triad_best"))
    }


def fio(folder: Path) -> dict[str, float]:
    """Bytes/s of sequential reads, reads/s of random ones."""
    found = {}
    for name, options in FIO.items():
        common = ["--direct=1", "--ioengine=psync", "--thread", "--size=256M", "--group_reporting", "--runtime=2"]
        command = ["fio", "--name=x", f"--filename={folder}/fio.bin", *common, "--time_based", *options]
        read = json.loads(output([*command, "--output-format=json"]))["jobs"][0]["read"]
        found[name] = float(read["bw_bytes"] if "sequential" in name else read["iops"])
    return found


def flatout(folder: Path) -> dict[str, float]:
    names = ["memory_copy", "memory_triad", "storage_sequential_read", "storage_random_read"]
    options = [f"--only={name}" for name in names]
    command = [sys.executable, "-m", "flatout", "bench", "--ranks", "1", "--time", "25s", "--path", str(folder)]
    content = json.loads(output([*command, "--allow-write", *options, "--json"]))
    found = {}
    for one in content["measurements"]:
        key = one["name"]
        if key == "storage_sequential_read":
            key += f" {one['threads']} thread{'s' * (one['threads'] > 1)}"
        elif key == "storage_random_read":
            key += f" {one['size'] >> 10} KiB"
        found[key] = one["value"]
        if key.startswith("memory"):
            found[f"{key} (STREAM's best)"] = one["value"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.path) as name:
        folder = Path(name)
        (folder / "stream.c").write_text(STREAM)
        program = folder / "stream"
        output(["gcc", "-O3", "-march=native", "-fopenmp", "-o", str(program), str(folder / "stream.c")])
        rounds = [{"peer": stream(program) | fio(folder), "flatout": flatout(folder)} for _ in range(given.rounds)]
    ratios = {
        what: [one["flatout"][what] / one["peer"][what] for one in rounds]
        for what in rounds[0]["peer"]
        if all(what in one["flatout"] for one in rounds)
    }
    summary = {
        what: {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
        for what, values in ratios.items()
    }
    json.dump({"rounds": rounds, "ratio_of_flatout_to_peer": summary}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
