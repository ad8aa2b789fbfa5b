"""How long a training stands still after a kill -9 of a rank, under `flatout run` with `flatout.checkpoint`.

    PYTHONPATH=src python benchmarks/restart_time.py [--device cpu|cuda] [--ranks 2] [--millions 100] [--kills 4]

`flatout run -- torchrun` trains an FSDP2 model with AdamW that saves in the background every second. Each rank notes
when each of its steps has ended, with the loss. A random rank is killed once a checkpoint is committed; the time counts
from the kill until all ranks have ended a step again. The steps that are done again must give the losses that they gave
before the kill; how many did, and how far the others are off, is told.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

LIMIT_S = 30.0
PATIENCE_S = 180.0
WIDTH = 2048


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--millions", type=float, default=100.0, help="parameters")
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--folder", type=Path, help="where checkpoints go (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    parser.add_argument("--as-rank", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.as_rank is not None:
        return train(given.as_rank, given.device, given.millions)
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        result = measure(Path(name), given)
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n")
    return int(result["back_s"]["high"] > LIMIT_S)


def measure(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    job = [__file__, "--as-rank", str(folder), "--device", given.device, "--millions", given.millions]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", given.ranks]
    keep = [
        sys.executable,
        "-m",
        "flatout",
        "run",
        "--max-restarts",
        given.kills + 1,
        "--ledger",
        folder / "book.jsonl",
    ]
    command = [*keep, "--checkpoint-folder", folder / "ckpt", "--", *launch, *job]
    began = time.time()
    with (folder / "log").open("w") as log:
        running = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            kills = [kill(folder, given.ranks, number) for number in range(given.kills)]
        except TimeoutError:
            print((folder / "log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            (folder / "stop").touch()
            code = running.wait(timeout=PATIENCE_S)
    start_s = min(step["ended"] for step in steps(folder, 0)) - began
    backs = [one["back_s"] for one in kills]
    repeated = [pair for rank in range(given.ranks) for pair in done_twice(steps(folder, rank))]
    return {
        "device": given.device,
        "num_ranks": given.ranks,
        "parameters": given.millions * 1e6,
        "checkpoint_bytes": max(size(step) for step in (folder / "ckpt").glob("step-*")),
        "first_start_s": round(start_s, 3),
        "back_s": {"median": statistics.median(backs), "low": min(backs), "high": max(backs)},
        "kills": kills,
        "losses_done_again": len(repeated),
        "bitwise_the_same": sum(before == after for before, after in repeated),
        "largest_relative_difference": max((abs(after / before - 1) for before, after in repeated), default=None),
        "code": code,
        "told": [line for line in (folder / "log").read_text().splitlines() if line.startswith("flatout")],
    }


def kill(folder: Path, num_ranks: int, number: int) -> dict[str, Any]:
    """Kill one rank once this start has a checkpoint of its own; tell how long until all have stepped again."""
    until = time.monotonic() + PATIENCE_S
    committed = newest(folder)
    while not (newest(folder) > committed and all(len(steps(folder, rank)) for rank in range(num_ranks))):
        pause(until, f"no checkpoint before kill {number}")
    rank = random.Random(number).randrange(num_ranks)
    last = steps(folder, rank)[-1]
    checkpoint = newest(folder)
    os.kill(last["pid"], signal.SIGKILL)
    killed = time.time()
    old = {one["pid"] for other in range(num_ranks) for one in steps(folder, other)}
    while not all(steps(folder, other)[-1]["pid"] not in old for other in range(num_ranks)):
        pause(until, f"not back after kill {number}")
    firsts = [next(one for one in steps(folder, other) if one["pid"] not in old) for other in range(num_ranks)]
    return {
        "rank": rank,
        "killed_after_step": last["step"],
        "newest_checkpoint": checkpoint,
        "resumed_at": min(one["step"] for one in firsts),
        "back_s": round(max(one["ended"] for one in firsts) - killed, 3),
    }


def pause(until: float, what: str) -> None:
    if time.monotonic() > until:
        raise TimeoutError(what)
    time.sleep(0.05)


def newest(folder: Path) -> int:
    names = [path.name for path in (folder / "ckpt").glob("step-*")]
    return max((int(name.removeprefix("step-")) for name in names if name.removeprefix("step-").isdigit()), default=-1)


def size(step: Path) -> int:
    return sum(path.stat().st_size for path in step.iterdir())


def steps(folder: Path, rank: int) -> list[dict[str, Any]]:
    file = folder / f"steps{rank}.jsonl"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


def done_twice(noted: list[dict[str, Any]]) -> list[tuple[float, float]]:
    """The loss of each step that was done again, and the one before it."""
    before: dict[int, float] = {}
    pairs = []
    for one in noted:
        if one["step"] in before:
            pairs.append((before[one["step"]], one["loss"]))
        before[one["step"]] = one["loss"]
    return pairs


def train(folder: Path, device: str, millions: float) -> int:
    import torch
    from torch.distributed.fsdp import fully_shard

    from flatout.checkpoint import Checkpointer

    rank = int(os.environ["RANK"])
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(max(round(millions * 1e6 / WIDTH**2), 1))]
    model = torch.nn.Sequential(*(part for layer in layers for part in (layer, torch.nn.Dropout(0.1)))).to(device)
    for layer in layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(rank + 1)
    stop = torch.zeros((), device=device)
    with (
        (folder / f"steps{rank}.jsonl").open("a") as notes,
        Checkpointer(folder / "ckpt", model=model, optimizer=optimizer, every_s=1) as checkpointer,
    ):
        step = checkpointer.resume()
        while not stop:
            step += 1
            optimizer.zero_grad()
            loss = model(torch.randn(64, WIDTH, device=device)).square().mean()
            loss.backward()
            optimizer.step()
            one = {"step": step, "loss": loss.item(), "ended": time.time(), "pid": os.getpid()}
            notes.write(json.dumps(one) + "\n")
            notes.flush()
            checkpointer.step(step)
            stop.fill_(float((folder / "stop").exists()))
            torch.distributed.all_reduce(stop, torch.distributed.ReduceOp.MAX)
    torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
