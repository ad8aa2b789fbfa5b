"""A training that prints which samples each step uses: what killed and uninterrupted runs are compared on.

Run as a rank, see `ranks`, or under `flatout run`: order_job.py FOLDER NUM_STEPS RESULT --kind KIND [--workers N] ..
Each line, "step N epoch E rows 3 14 ..", is written at once, before the checkpoint of its step.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from flatout.checkpoint import Checkpointer, CheckpointError

NUM_SAMPLES, BATCH = 48, 4


class Rows(Dataset[Any]):
    """Rows with noise, as augmentation has it: it draws in the training process if there are no workers."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, row: int) -> Any:
        return row, torch.randn(4) + row


def make_loader(kind: str, workers: int, rank: int, world_size: int) -> Any:
    options: dict[str, Any] = {"batch_size": BATCH, "num_workers": workers}
    if workers:
        options["multiprocessing_context"] = "fork"  # the tests' ranks are children of a fork server, and start others
    if kind == "persistent":
        options["persistent_workers"] = workers > 0
    if kind == "distributed":
        sampler = DistributedSampler(Rows(), num_replicas=world_size, rank=rank, seed=5)
        return DataLoader(Rows(), sampler=sampler, **options)
    if kind == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found]

        return StatefulDataLoader(Rows(), shuffle=True, **options)
    return DataLoader(Rows(), shuffle=kind != "sequential", **options)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("num_steps", type=int)
    parser.add_argument("result", type=Path)
    parser.add_argument("--kind", default="shuffled")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--every", type=int, default=3)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--lines", type=Path, help="append the lines to LINES-RANK.txt instead of printing them")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    lines = sys.stdout
    if given.lines is not None:
        lines = given.lines.with_name(f"{given.lines.name}-{rank}.txt").open("a", buffering=1)
    if world_size > 1:
        where = os.environ.get("MEETING_PLACE")
        method = {"init_method": f"file://{where}", "rank": rank, "world_size": world_size} if where else {}
        torch.distributed.init_process_group("gloo", **method)
    torch.manual_seed(100 + rank)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loader = make_loader(given.kind, given.workers, rank, world_size)
    try:
        with Checkpointer(
            given.folder, model=model, optimizer=optimizer, data=loader, every=given.every
        ) as checkpointer:
            step = checkpointer.resume()
            print(f"start {step}", file=lines, flush=True)
            while step < given.num_steps:
                epoch = step // len(loader)
                if given.kind == "distributed":
                    loader.sampler.set_epoch(epoch)
                for rows, noisy in loader:
                    optimizer.zero_grad()
                    model(noisy).square().mean().backward()
                    optimizer.step()
                    step += 1
                    print(f"step {step} epoch {epoch} rows {' '.join(map(str, rows.tolist()))}", file=lines, flush=True)
                    checkpointer.step(step)
                    time.sleep(given.pause)
                    if step == given.num_steps:
                        break
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    weights = ",".join(f"{value:.9g}" for value in model.weight.flatten().tolist())
    if rank == 0:
        given.result.write_text(weights)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
