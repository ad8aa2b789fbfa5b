"""How long a checkpoint keeps the training waiting: `flatout.checkpoint` against a plain torch.save, in the same run.

    python benchmarks/checkpoint_stall.py [--device cpu|cuda] [--millions 20] [--rounds 7] [--folder DIR] [--out FILE]
    torchrun --nproc-per-node 2 benchmarks/checkpoint_stall.py --device cuda --millions 1600 --width 4096 --batch 2048

The second is FSDP2, each rank with its part; it needs 2 x 20 GB of host memory and 80 GB of disk. Needs torch and the
standard library only; `src/` of the version to measure comes first on PYTHONPATH.

Each round has four blocks of `--steps` steps, in random order: nothing is saved; torch.save of the model's and the
optimizer's state dicts to one file a rank (of its own shards, which is the quickest way for it); the same with an
fsync, so that it is on the disk, as the checkpoint will be; and a checkpoint in the background, whose writing may end
after the block and is not waited for. All begin with an idle device. The stall is the time from the call until the
device has done all that was queued, so that copies from a GPU count, and of several ranks the longest. What a block
takes longer than the round's block without a checkpoint is the whole cost, with what the writer takes from the steps
beside it. `stall_cpu_s` is the CPU time of the training's thread in the stall, which other work on the machine changes
less. `noted_stall_s` is what `flatout.checkpoint` itself notes, of the same checkpoints. The first round, in which
memory is allocated and pinned, is left out, and told apart.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from flatout.checkpoint import Checkpointer

SAVING = ("torch.save", "torch.save, fsync", "flatout")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--millions", type=float, default=20.0, help="parameters")
    parser.add_argument("--width", type=int, default=1024, help="of a layer, which has its square of parameters")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=20, help="in a block")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--folder", type=Path, help="where checkpoints go (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    given = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if given.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if world_size > 1:
        torch.distributed.init_process_group("nccl" if given.device == "cuda" else "gloo")
    folder = Path(tempfile.mkdtemp(dir=given.folder)) if rank == 0 else None
    if world_size > 1:
        told = [str(folder)]
        torch.distributed.broadcast_object_list(told)
        folder = Path(told[0])
    try:
        result = measure(given, folder or Path(), rank, world_size)
    finally:
        if rank == 0:
            shutil.rmtree(folder or Path(), ignore_errors=True)
        if world_size > 1:
            torch.distributed.destroy_process_group()
    if rank == 0:
        print(json.dumps(result, indent=1))
        if given.out:
            given.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(given: argparse.Namespace, folder: Path, rank: int, world_size: int) -> dict[str, Any]:
    device = torch.device(given.device)
    width = given.width
    num_layers = max(round(given.millions * 1e6 / width**2), 1)
    with device:
        model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(num_layers)))
    for layer in model:
        torch.nn.init.normal_(layer.weight, std=width**-0.5)  # keeps the activations' size, however many layers
    if world_size > 1:
        from torch.distributed.fsdp import fully_shard

        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(given.batch, width, device=device)

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    checkpointer = Checkpointer(folder / "ckpt", model=model, optimizer=optimizer, keep=1)
    number = 0

    def plainly() -> None:
        state = {"model": local(model.state_dict()), "optimizer": local(optimizer.state_dict())}
        torch.save(state, folder / f"plain{rank}.pt")

    def to_the_disk() -> None:
        plainly()
        with (folder / f"plain{rank}.pt").open("rb+") as file:
            os.fsync(file.fileno())

    def in_background() -> None:
        nonlocal number
        number += 1
        checkpointer.save(number)

    def block(save: Callable[[], None] | None) -> tuple[float, float, float]:
        """The stall, the whole time, and the training thread's CPU time in the stall."""
        wait()
        if world_size > 1:
            torch.distributed.barrier()
        began, cpu_began = time.perf_counter(), time.thread_time()
        if save is not None:
            save()
            wait()
        stall, cpu = time.perf_counter() - began, time.thread_time() - cpu_began
        for _ in range(given.steps):
            step()
        wait()
        return stall, time.perf_counter() - began, cpu

    for _ in range(3):
        step()
    kinds = {"nothing": None, "torch.save": plainly, "torch.save, fsync": to_the_disk, "flatout": in_background}
    rounds = []
    order = random.Random(0)
    for _ in range(given.rounds + 1):
        one: dict[str, Any] = {"order": order.sample(list(kinds), len(kinds))}
        for name in one["order"]:
            one[name] = longest(block(kinds[name]), world_size)
            written = time.perf_counter()
            checkpointer.wait()
            one.setdefault("rest_of_writing_s", {})[name] = round(time.perf_counter() - written, 6)
        rounds.append(one)
    checkpointer.close()
    if rank:
        return {}
    num_bytes = sum(path.stat().st_size for path in (folder / "ckpt").glob("step-*/*"))
    noted = [json.loads(line) for line in (folder / "ckpt" / "checkpoints.jsonl").read_text().splitlines()]
    if any(line["outcome"] != "committed" for line in noted):
        raise SystemExit(f"not all checkpoints were written: {noted}")
    return summary(rounds, num_bytes, [line["stall_s"] for line in noted], given, world_size)


def longest(seconds: Sequence[float], world_size: int) -> list[float]:
    """Of the ranks, each of these."""
    told: list[Any] = [seconds] * world_size
    if world_size > 1:
        torch.distributed.all_gather_object(told, seconds)
    return [round(max(column), 6) for column in zip(*told, strict=True)]


def local(state: Any) -> Any:
    """This rank's shards as plain tensors."""
    if isinstance(state, dict):
        return {key: local(value) for key, value in state.items()}
    if isinstance(state, list):
        return [local(value) for value in state]
    return state.to_local() if hasattr(state, "to_local") else state


def summary(
    rounds: list[dict[str, Any]], num_bytes: int, noted_s: list[float], given: argparse.Namespace, world_size: int
) -> dict[str, Any]:
    first, *settled = rounds
    whole = {name: [one[name][1] - one["nothing"][1] for one in settled] for name in SAVING}
    return {
        "device": torch.cuda.get_device_name() if given.device == "cuda" else given.device,
        "num_ranks": world_size,
        "torch": torch.__version__,
        "num_cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "num_threads": torch.get_num_threads(),
        "millions_of_parameters": given.millions,
        "width": given.width,
        "checkpoint_bytes": num_bytes,
        "stall_s": {name: spread([one[name][0] for one in settled]) for name in SAVING},
        "stall_ratio": {name: spread([one["flatout"][0] / one[name][0] for one in settled]) for name in SAVING[:2]},
        "stall_cpu_s": {name: spread([one[name][2] for one in settled]) for name in SAVING},
        "noted_stall_s": spread(noted_s[1:]),
        "whole_cost_s": {name: spread(values) for name, values in whole.items()},
        "block_without_s": spread([one["nothing"][1] for one in settled]),
        "checksum_bytes_per_s": {"crc32": rate(zlib.crc32), "blake2b": rate(hashlib.blake2b)},
        "first_stall_s": {name: first[name][0] for name in SAVING},
        "rounds": rounds,
    }


def rate(checksum: Callable[[bytes], object]) -> int:
    data = os.urandom(1 << 20) * 64
    checksum(data)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        checksum(data)
        times.append(time.perf_counter() - began)
    return round(len(data) / min(times))


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 6),
        "low": round(min(values), 6),
        "high": round(max(values), 6),
    }


if __name__ == "__main__":
    sys.exit(main())
