"""`flatout bench`'s collectives against NVIDIA's nccl-tests, on the same GPUs in the same rounds.

    python benchmarks/bench_vs_nccl_tests.py --nccl-tests DIR [--rounds 3] [--time 45s] --out FILE

Each round runs nccl-tests and `flatout bench` once each; who goes first alternates. A ratio is Flatout's bus bandwidth
over nccl-tests' of the same round, collective and size: of its in-place columns where torch.distributed works in place
(all-reduce, broadcast), else out of place. Both use fp32, powers of two from 1 KB to 1 GB, and mean times of calls that
are queued one after the other. One thing differs by nature: nccl-tests drives all GPUs from one process in C, Flatout
has torch.distributed and a process a GPU, as a training job has. Up to 64 MiB Flatout queues the calls ahead and takes
the GPUs' own time: with the time as called from Python, ratios up to 4 MiB were 0.14 to 0.63 on 2 H200. FILE has both.

That both mean the same by bus bandwidth is checked as well: `definition` says how far nccl-tests' own column is from
its size and time by Flatout's formula, beyond what its two decimals explain.

To build nccl-tests (https://github.com/NVIDIA/nccl-tests; without MPI, one process drives all GPUs):

    make -j MPI=0 CUDA_HOME=/usr/local/cuda NCCL_HOME=DIR    # DIR has include/nccl.h and lib/libnccl.so

With NCCL from pip, DIR is site-packages/nvidia/nccl, after `ln -s libnccl.so.2 libnccl.so` in its lib. At run time the
libraries of the wheels beside this Python's torch are put first, so that both sides run the same NCCL; FILE has both
versions. It is written anew after each round. Needs two GPUs or more, and torch.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import measure

from flatout.probe.ceilings.bus import bus_factor

# Flatout's name -> nccl-tests' program, and whether torch.distributed does it in place.
PROGRAMS = {
    "all_reduce": ("all_reduce_perf", True),
    "all_gather": ("all_gather_perf", False),
    "reduce_scatter": ("reduce_scatter_perf", False),
    "all_to_all": ("alltoall_perf", False),
    "broadcast": ("broadcast_perf", True),
    "send_recv": ("sendrecv_perf", False),
}
RANGES = {"up to 64 KiB": (0, 64 << 10), "to 16 MiB": (64 << 10, 16 << 20), "above": (16 << 20, 1 << 62)}


class Row(dict[str, Any]):
    """A size of nccl-tests' table: `size`; of either way `seconds`, bus bandwidth as `printed`, elements `wrong`."""


def rows(table: str) -> list[Row]:
    """Of nccl-tests' table: size, count, type, operation, root, then twice time (us), algbw, busbw (GB/s), #wrong."""
    found = []
    for line in table.splitlines():
        words = line.split()
        if len(words) < 13 or not words[0].isdecimal():
            continue
        groups = {}
        for name, at in (("out of place", 5), ("in place", 9)):
            time_us, _, busbw, wrong = words[at : at + 4]
            groups[name] = {"seconds": float(time_us) / 1e6, "printed": float(busbw) * 1e9, "wrong": wrong}
        found.append(Row(size=int(words[0]), **groups))
    return found


def version(table: str) -> str:
    """`2.28.9`, of the NCCL that nccl-tests ran with."""
    found = re.search(r"nccl-library=(\d+)", table)
    code = int(found[1]) if found else 0
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}" if code else "unknown"


def libraries() -> str:
    """Folders with the shared libraries of NVIDIA's wheels, NCCL's first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [Path(one) for one in (spec.submodule_search_locations or [])] if spec else []
    folders = {file.parent for root in roots for file in root.glob("*/lib/lib*.so*")}
    return os.pathsep.join(map(str, sorted(folders, key=lambda folder: (folder.parent.name != "nccl", str(folder)))))


def run_nccl_tests(folder: Path, num_gpus: int, largest: str) -> dict[str, Any]:
    """Collective -> bus bandwidths by size, how far the definition is off, and wrong elements."""
    before = os.environ.get("LD_LIBRARY_PATH", "")
    environment = {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [libraries(), before]))}
    found: dict[str, Any] = {"nccl": "unknown", "bandwidths": {}, "definition": {}, "wrong": {}}
    for name, (program, in_place) in PROGRAMS.items():
        options = ["-b", "1K", "-e", largest, "-f", "2", "-g", str(num_gpus), "-n", "20", "-w", "5", "-c", "1"]
        table = output([str(folder / program), *options], env=environment)
        found["nccl"] = version(table)
        by_size, off, wrong = {}, 0.0, 0
        for row in rows(table):
            one = row["in place" if in_place else "out of place"]
            if not one["seconds"]:
                continue
            bandwidth = row["size"] * bus_factor(name, num_gpus) / one["seconds"]
            by_size[row["size"]] = bandwidth
            # Two decimals of each; large values have fewer, and still five digits.
            rounding = 0.005e9 + bandwidth * (0.005e-6 / one["seconds"] + 1e-4)
            off = max(off, abs(bandwidth - one["printed"]) - rounding)
            wrong += 0 if one["wrong"] in ("0", "N/A") else int(float(one["wrong"]))
        if not by_size:
            sys.exit(f"error: {program} printed no table\n{table[-2000:]}")
        found["bandwidths"][name], found["definition"][name], found["wrong"][name] = by_size, off, wrong
    return found


def run_flatout(num_gpus: int, time: str) -> dict[str, Any]:
    only = [f"--only={name}" for name in PROGRAMS]
    command = [sys.executable, "-m", "flatout", "bench", "--ranks", str(num_gpus), "--time", time, "--json", *only]
    content = json.loads(output(command, fine=(0, 1)))  # 1: a result was wrong, and the JSON says which
    bandwidths: dict[str, dict[int, float]] = {}
    for one in content["measurements"]:
        if one["group"] == "all":
            bandwidths.setdefault(one["name"], {})[one["size"]] = one["value"]
    kept = ("software", "device", "took_s", "wrong", "not_measured", "fits")
    as_called: dict[str, dict[int, float]] = {}
    for one in content["measurements"]:
        if one["group"] == "all" and one["seconds_as_called"]:
            as_called.setdefault(one["name"], {})[one["size"]] = one["seconds_as_called"]
    return {"bandwidths": bandwidths, "seconds_as_called": as_called, **{name: content[name] for name in kept}}


def output(command: list[str], *, fine: tuple[int, ...] = (0,), **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode not in fine:
        sys.exit(f"error: {' '.join(command[:4])} ended with {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def by_shift(bandwidths: dict[int, float]) -> dict[int, float]:
    """By the power of two nearest to a size: with 3 ranks, 1,020 and 1,008 bytes are both a kilobyte."""
    return {(size * 4 // 3).bit_length() - 1: rate for size, rate in bandwidths.items()}


def ratios(rounds: list[dict[str, Any]]) -> dict[str, dict[int, list[float]]]:
    """Collective -> size -> Flatout's bus bandwidth over nccl-tests', of each round."""
    found: dict[str, dict[int, list[float]]] = {}
    for one in rounds:
        for name in PROGRAMS:
            theirs = by_shift(one["nccl_tests"]["bandwidths"][name])
            ours = by_shift(one["flatout"]["bandwidths"].get(name, {}))
            for shift in sorted(theirs.keys() & ours.keys()):
                found.setdefault(name, {}).setdefault(1 << shift, []).append(ours[shift] / theirs[shift])
    return found


def summary(of: dict[str, dict[int, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, by_size in of.items():
        for label, (above, to) in RANGES.items():
            values = [ratio for size, many in by_size.items() if above < size <= to for ratio in many]
            if values:
                found.setdefault(name, {})[label] = measure.spread(values)
    return found


def told(rounds: list[dict[str, Any]]) -> str:
    """A table for the eye: medians over the rounds, GB/s."""
    of = ratios(rounds)
    lines = [f"{'collective':15}{'size':>14}{'nccl-tests':>12}{'flatout':>10}{'ratio, median (range)':>28}"]
    for name, by_size in of.items():
        for size, many in by_size.items():
            shift = size.bit_length() - 1
            theirs, ours = (
                statistics.median(by_shift(one[side]["bandwidths"][name])[shift] for one in rounds) / 1e9
                for side in ("nccl_tests", "flatout")
            )
            ratio = f"{statistics.median(many):.3f} ({min(many):.3f} to {max(many):.3f})"
            lines.append(f"{name:15}{size:14,}{theirs:12.3f}{ours:10.3f}{ratio:>28}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nccl-tests", type=Path, required=True, metavar="DIR", help="a built tree of nccl-tests")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--time", default="45s", help="of each run of flatout bench")
    parser.add_argument("--largest", default="1G", help="as nccl-tests takes it")
    given = parser.parse_args()
    folder = next((one for one in (given.nccl_tests / "build", given.nccl_tests) if one.is_dir()), given.nccl_tests)
    missing = [program for program, _ in PROGRAMS.values() if not (folder / program).is_file()]
    if missing:
        sys.exit(f"error: `{folder}` has no {', '.join(missing)}\nhint: build nccl-tests first, see --help")
    import torch

    num_gpus = torch.cuda.device_count()
    if num_gpus < 2:
        sys.exit(f"error: nccl-tests compare at least 2 GPUs, and torch sees {num_gpus}")
    rounds: list[dict[str, Any]] = []
    for number in range(given.rounds):
        one: dict[str, Any] = {"first": "flatout" if number % 2 else "nccl_tests"}
        for side in ("flatout", "nccl_tests") if number % 2 else ("nccl_tests", "flatout"):
            if side == "flatout":
                one[side] = run_flatout(num_gpus, given.time)
            else:
                one[side] = run_nccl_tests(folder, num_gpus, given.largest)
        rounds.append(one)
        of = ratios(rounds)
        result = {
            "machine": measure.machine(),
            "gpu": torch.cuda.get_device_name(0),
            "num_gpus": num_gpus,
            "torch": torch.__version__,
            "nccl": {"flatout": one["flatout"]["software"].rpartition(" ")[2], "nccl_tests": one["nccl_tests"]["nccl"]},
            "environment": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
            "ratio_of_flatout_to_nccl_tests": summary(of),
            "ratio_by_size": of,
            "rounds": rounds,
        }
        given.out.write_text(json.dumps(result, indent=1) + "\n")
        print(f"round {number + 1} of {given.rounds}", file=sys.stderr)
    print(told(rounds))
    versions = result["nccl"]
    if versions["flatout"] != versions["nccl_tests"]:
        print(f"note: flatout had NCCL {versions['flatout']}, and nccl-tests {versions['nccl_tests']}", file=sys.stderr)


if __name__ == "__main__":
    main()
