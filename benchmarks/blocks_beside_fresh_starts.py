"""Changes compared in blocks within one start, beside the same changes in fresh starts: the same effects, sooner?

    python benchmarks/blocks_beside_fresh_starts.py --out OUT [--device cpu|cuda] [--jobs NAME,...] [--rounds 4]
    python benchmarks/blocks_beside_fresh_starts.py --judge OUT

On one GPU (torch is all that the jobs need; numpy, msgspec and scipy judge, here or later with `--judge`):

    PYTHONPATH=src python benchmarks/blocks_beside_fresh_starts.py --device cuda --rounds 3 --out $OUT/blocks_cuda

Each job trains in fresh starts of the baseline and of every change in turn, and once more with blocks of all changes.
OUT gets the step files of the blocks and of all starts, and `results.json`: for each change both speedups with their
95 % intervals, whether these agree, and the seconds that each way took. A run that was interrupted goes on: starts that
ended are not run again.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

STARTUP = Path(__file__).resolve().parents[1] / "src" / "flatout" / "inside" / "startup"
UNITS = 8
TIMEOUT_S = 240
MEASURED_S = 3.0
Settings = list[tuple[str, dict[str, Any]]]


class Job(NamedTuple):
    ranks: int
    options: dict[str, Any]
    changes: dict[str, Settings]
    carry_over: dict[str, int]  # steps after a switch, if more than 2


LOADER_AHEAD = 2 * (8 + 2)  # batches that four workers have ready, and some
CPU: dict[str, Job] = {
    "compute": Job(
        2,
        {"width": 768, "layers": 8, "batch": 64, "bucket": 1, "garbage": 30_000},
        {
            "threads=2": [("threads", {"number": 2})],
            "bind-cores=exclusive": [("bind_cores", {"by": "exclusive"})],
            "ddp-bucket=100": [("ddp", {"bucket_cap_mb": 100})],
            "gc-off": [("garbage_collection", {"how": "off", "after": 10})],
        },
        {"ddp-bucket=100": 13},
    ),
    "loader": Job(
        2,
        {"width": 256, "layers": 2, "batch": 16, "sleep": 0.002},
        {
            "dataloader-workers=1": [("dataloader", {"num_workers": 1})],
            "dataloader-workers=4": [("dataloader", {"num_workers": 4})],
        },
        {"dataloader-workers=1": 6, "dataloader-workers=4": LOADER_AHEAD},
    ),
    "accumulate": Job(
        2,
        {"width": 1024, "layers": 6, "batch": 16, "passes": 4},
        {"ddp-no-sync=4": [("ddp_no_sync", {"passes": 4})]},
        {},
    ),
}
CUDA: dict[str, Job] = {
    "compute": Job(
        1,
        {"width": 4096, "layers": 12, "batch": 2048},
        {"tf32": [("tf32", {})], "autocast=bfloat16": [("autocast", {"dtype": "bfloat16"})]},
        {},
    ),
    "host": Job(
        1,
        {"width": 512, "layers": 48, "batch": 64, "ddp": 1, "bucket": 1, "garbage": 20_000},
        {
            "gc-off": [("garbage_collection", {"how": "off", "after": 10})],
            "ddp-bucket=100": [("ddp", {"bucket_cap_mb": 100})],
        },
        {"ddp-bucket=100": 13},
    ),
    "loader": Job(
        1,
        {"width": 1024, "layers": 4, "batch": 64, "sleep": 0.0005},
        {
            "dataloader-workers=2": [("dataloader", {"num_workers": 2})],
            "dataloader-workers=4": [("dataloader", {"num_workers": 4})],
        },
        {"dataloader-workers=2": 10, "dataloader-workers=4": LOADER_AHEAD},
    ),
    "copies": Job(
        1,
        {"width": 1 << 16, "layers": 0, "batch": 512, "workers": 4},
        {
            "dataloader-pin-memory": [("dataloader", {"pin_memory": True})],
            "dataloader-pin-memory + non-blocking-copies": [
                ("dataloader", {"pin_memory": True}),
                ("non_blocking_copies", {}),
            ],
        },
        dict.fromkeys(("dataloader-pin-memory", "dataloader-pin-memory + non-blocking-copies"), LOADER_AHEAD),
    ),
}


# The job.


def train(options: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    device = torch.device("cuda" if options.device == "cuda" else "cpu")

    class Data(Dataset):
        def __len__(self) -> int:
            return 1 << 20

        def __getitem__(self, index: int) -> torch.Tensor:
            if options.sleep:
                time.sleep(options.sleep)
            return torch.full((options.width,), index % 97 / 97)

    class Node:
        """An object in a reference cycle, which only the collector frees."""

        def __init__(self) -> None:
            self.me = self

    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or options.ddp:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(options.width, 64)] if not options.layers else []
    for _ in range(options.layers):
        layers += [nn.Linear(options.width, options.width), nn.GELU()]
    model: nn.Module = nn.Sequential(*layers).to(device)
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=options.bucket)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = DataLoader(Data(), batch_size=options.batch, num_workers=options.workers)
    is_loading = bool(options.sleep or options.workers)
    batches = iter(loader) if is_loading else None
    fixed = torch.randn(options.batch, options.width, device=device)
    while True:
        for _ in range(options.passes):
            x = next(batches).to(device) if batches is not None else fixed
            loss = model(x).float().pow(2).mean()
            loss.backward()
        for _ in range(options.garbage):
            Node()
        optimizer.step()
        optimizer.zero_grad()


# The two ways.


def start(out: Path, job: Job, device: str, variables: dict[str, str]) -> float:
    """Run the job, recorded in `out`, until its variables stop it; return the seconds that it took.

    A start that has ended before is not run again.
    """
    took_file = out / "took_s"
    if took_file.exists():
        return float(took_file.read_text())
    shutil.rmtree(out, ignore_errors=True)
    (out / ".state").mkdir(parents=True)
    (out / "recording.json").write_text('{"schema": "flatout/recording", "version": 1, "run_id": "benchmark"}\n')
    words = [word for name, value in job.options.items() for word in (f"--{name}", str(value))]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FLATOUT_")},
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(STARTUP),
        "FLATOUT_RECORDING": str(out),
        "FLATOUT_LIGHT": "1",
        "FLATOUT_STOP_AFTER_S": str(TIMEOUT_S - 40),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        **variables,
    }
    began = time.monotonic()
    processes = []
    for rank in range(job.ranks):
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job.ranks, "LOCAL_WORLD_SIZE": job.ranks}
        command = [sys.executable, __file__, "--train", "--device", device, *words]
        own = environment | {name: str(value) for name, value in place.items()}
        log = (out / f"output-{rank}.log").open("w")
        processes.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(timeout=max(TIMEOUT_S - (time.monotonic() - began), 1)))
        except subprocess.TimeoutExpired:
            process.kill()
            codes.append(process.wait())
    if any(codes):
        print(f"{out}: codes {codes}: {(out / 'output-0.log').read_text()[-800:]}", file=sys.stderr, flush=True)
    took_s = time.monotonic() - began
    took_file.write_text(f"{took_s}\n")
    return took_s


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def patches_of(settings: Settings) -> dict[str, str]:
    """Return the variables that apply the settings to a fresh start."""
    patches = [{"name": name, "parameters": given} for name, given in settings if name != "threads"]
    threads = [str(given["number"]) for name, given in settings if name == "threads"]
    variables = {"FLATOUT_PATCHES": json.dumps(patches)} if patches else {}
    return variables | ({"OMP_NUM_THREADS": threads[0]} if threads else {})


def orders(num_arms: int, num_units: int, numbers: random.Random) -> list[int]:
    """Return the arms of the blocks, as `flatout.trial.block_schedule.orders`, which needs more than torch."""
    begins = {arm: [number % 2 == 0 for number in range(num_units)] for arm in range(1, num_arms + 1)}
    for flags in begins.values():
        numbers.shuffle(flags)
    order: list[int] = []
    for number in range(num_units):
        arms = list(range(1, num_arms + 1))
        numbers.shuffle(arms)
        for arm in arms:
            order += [0, arm, arm, 0] if begins[arm][number] else [arm, 0, 0, arm]
    return order


def schedule(job: Job, num_units: int) -> str:
    arms = [
        {
            "name": name,
            "settings": [{"name": setting, "parameters": given} for setting, given in settings],
            "carry_over": job.carry_over.get(name, 2),
        }
        for name, settings in job.changes.items()
    ]
    order = orders(len(arms), num_units, random.Random(1))
    return json.dumps(
        {"arms": arms, "order": order, "unit": 4, "min_steps": 10, "min_block_s": 0.25, "max_s": TIMEOUT_S / 2}
    )


def measure(out: Path, name: str, job: Job, device: str, rounds: int, num_units: int) -> None:
    """Run one job in both ways; keep the recordings and the seconds."""
    folder = out / name
    seconds = {"blocks": start(folder / "blocks", job, device, {"FLATOUT_BLOCKS": schedule(job, num_units)})}
    print(f"{name}: blocks of {len(job.changes)} changes in {seconds['blocks']:.0f} s", flush=True)
    block_step_s = usual_step_s(folder / "blocks")
    num_steps = min(max(round(MEASURED_S / block_step_s), 20), 3000) if block_step_s else 100
    starts = 0.0
    arms: list[str] = ["baseline", *job.changes]
    for number in range(rounds):
        for arm in arms if number % 2 == 0 else reversed(arms):
            variables = {"FLATOUT_STOP_AFTER": str(num_steps), **patches_of(job.changes.get(arm, []))}
            starts += start(folder / f"{number}-{arm.replace(' ', '')}", job, device, variables)
    seconds["fresh starts"] = starts
    print(f"{name}: {rounds * len(arms)} fresh starts in {starts:.0f} s", flush=True)
    (folder / "seconds.json").write_text(json.dumps(seconds) + "\n")


def step_lines(path: Path) -> tuple[list[list[Any]], list[dict[str, Any]]]:
    """Return the rows and the events of a step file."""
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    rows = [line for line in lines if isinstance(line, list)]
    return rows, [line for line in lines if isinstance(line, dict)]


def usual_step_s(recording: Path) -> float:
    rows, _ = step_lines(recording / "rank0.steps.jsonl")
    times = [row[2] / 1e9 for row in rows if row[0] > 5 and row[9] == ""]
    return statistics.median(times) if times else 0.0


def mean_step_s(recording: Path) -> float | None:
    """Return the mean measured step of a fresh start, over the ranks."""
    means = []
    for path in sorted(recording.glob("rank*.steps.jsonl")):
        rows, events = step_lines(path)
        plan = next((event for event in events if event.get("event") == "plan"), None)
        times = [row[2] / 1e9 for row in rows if plan and row[0] >= plan["settled"] and row[9] == ""]
        if not times:
            return None
        means.append(statistics.fmean(times))
    return statistics.fmean(means) if means else None


# Judging.


def fresh_effect(folder: Path, arm: str) -> tuple[float, float, float] | None:
    """Return the speedup in fresh starts with its 95 % interval, from the ratio in each round."""
    from scipy.stats import t

    ratios = []
    for baseline in sorted(folder.glob("*-baseline")):
        number = baseline.name.partition("-")[0]
        a, b = mean_step_s(baseline), mean_step_s(folder / f"{number}-{arm.replace(' ', '')}")
        if a is not None and b is not None:
            ratios.append(math.log(a / b))
    if len(ratios) < 2:
        return None
    mean = statistics.fmean(ratios)
    half = float(t.ppf(0.975, len(ratios) - 1)) * statistics.stdev(ratios) / math.sqrt(len(ratios))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def judge(out: Path, jobs: dict[str, Job]) -> None:
    from flatout.profile import read_recording
    from flatout.trial.blocks import read_blocks
    from flatout.verdict.blocks import judge_blocks

    results = []
    print("| job | change | blocks | fresh starts | agree | verdict of the blocks |\n|---|---|---|---|---|---|")
    for name, job in jobs.items():
        folder = out / name
        if not (folder / "seconds.json").exists():
            continue
        blocks = read_blocks(read_recording(folder / "blocks"))
        for arm, settings in job.changes.items():
            keeps = any(setting in ("garbage_collection", "dataloader", "bind_cores") for setting, _ in settings)
            found = judge_blocks(blocks, arm, num_candidates=len(job.changes), keeps_spikes=keeps)
            fresh = fresh_effect(folder, arm)
            agree = None
            if found.interval is not None and fresh is not None:
                agree = found.interval[0] <= fresh[2] and fresh[1] <= found.interval[1]
            results.append(
                {
                    "job": name,
                    "change": arm,
                    "speedup": found.speedup,
                    "interval": found.interval,
                    "verdict": found.verdict,
                    "reason": found.reason,
                    "num_units": found.num_units,
                    "num_carry_over": found.num_carry_over,
                    "fresh": fresh,
                    "agree": agree,
                }
            )
            ways = f"{shown(found.speedup, found.interval)} | {shown(fresh and fresh[0], fresh and fresh[1:])}"
            print(f"| {name} | {arm} | {ways} | {agree} | {found.verdict} |")
    files = {name: out / name / "seconds.json" for name in jobs}
    seconds = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
    for name, took in seconds.items():
        print(f"{name}: blocks {took['blocks']:.0f} s, fresh starts {took['fresh starts']:.0f} s")
    (out / "results.json").write_text(json.dumps({"results": results, "seconds": seconds}, indent=1) + "\n")


def shown(speedup: float | None, interval: Any) -> str:
    if speedup is None:
        return "-"
    return f"{speedup:.3f}x" + (f" ({interval[0]:.3f}-{interval[1]:.3f})" if interval else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--units", type=int, default=UNITS)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    own = {"width": 256, "layers": 2, "batch": 16, "workers": 0, "passes": 1, "bucket": 25, "ddp": 0}
    for name, value in {**own, "garbage": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value, help=argparse.SUPPRESS)
    parser.add_argument("--sleep", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options)
        return
    jobs = CUDA if options.device == "cuda" else CPU
    if options.jobs:
        jobs = {name: jobs[name] for name in options.jobs.split(",")}
    if options.judge is None:
        if options.out is None:
            parser.error("--out is required")
        for name, job in jobs.items():
            measure(options.out, name, job, options.device, options.rounds, options.units)
    try:
        judge(options.judge or options.out, jobs)
    except ImportError as error:
        print(f"not judged here, because {error}: run it again with --judge", flush=True)


if __name__ == "__main__":
    main()
