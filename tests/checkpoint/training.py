"""A small training that is a pure function of its seed: what interrupted and uninterrupted runs are compared on.

Run as a rank, see `ranks`: training.py FOLDER NUM_STEPS RESULT --kind plain|ddp|fsdp|hsdp [--every N] ..
It has what a resumed training can get wrong: dropout and noise from three generators, momentum, a schedule, batch
statistics, a shuffled stateful loader.
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import errno
import os
import random
import sys
import time
import types
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed

from flatout.checkpoint import Checkpointer, CheckpointError, host_buffer
from flatout.inside.patches.apply import apply_patches


class Data:
    """Batches in a shuffled order, with a position of its own that only state_dict() tells."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randn(64, 8, generator=self.generator)
        self.order: list[int] = []

    def next(self) -> torch.Tensor:
        if not self.order:
            self.order = torch.randperm(64, generator=self.generator).tolist()
        batch, self.order = self.order[:4], self.order[4:]
        return self.rows[batch]

    def state_dict(self) -> dict[str, object]:
        return {"order": tuple(self.order), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.order = list(state["order"])
        self.generator.set_state(state["generator"])


def build(kind: str, *, width: int = 32) -> torch.nn.Module:
    torch.manual_seed(7)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, width),
        torch.nn.BatchNorm1d(width) if kind in ("plain", "ddp") else torch.nn.LayerNorm(width),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(width, width + 1),  # uneven over two and three ranks
        torch.nn.Linear(width + 1, 1),
    )
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        num_ranks = torch.distributed.get_world_size()
        shape, names = ((num_ranks,), ("shard",)) if kind == "fsdp" else ((2, num_ranks // 2), ("replicate", "shard"))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def make_optimizer(model: torch.nn.Module, *, has_momentum: bool = False) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    if has_momentum:
        return torch.optim.SGD(parameters, lr=1e-2, momentum=0.9, weight_decay=1e-3)
    return torch.optim.AdamW([{"params": parameters[:2], "lr": 3e-3}, {"params": parameters[2:]}], lr=1e-2)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    drawn = np.random.standard_normal(batch.shape)  # noqa: NPY002 - the generator that older scripts use
    noise = torch.tensor(drawn * random.random(), dtype=torch.float32)
    loss = (model(batch + 0.01 * noise) - batch.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def digest(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """CRC-32 of all weights, and of what the optimizer keeps; of the whole tensors."""
    checksum = 0
    keys = ("step", "exp_avg", "exp_avg_sq")
    kept = [optimizer.state[one][key] for one in model.parameters() for key in keys if key in optimizer.state[one]]
    for tensor in [*model.state_dict().values(), *kept]:
        whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
        checksum = zlib.crc32(whole.detach().contiguous().numpy().tobytes(), checksum)
    return f"{checksum:08x}"


def no_memory(*_: object, **__: object) -> None:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("num_steps", type=int)
    parser.add_argument("result", type=Path)
    parser.add_argument("--kind", default="plain")
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--local")
    parser.add_argument("--shared-every", type=int, default=1)
    parser.add_argument("--on-error", default="warn")
    parser.add_argument("--hosts", action="store_true", help="each rank is on a host of its own, with its own --local")
    parser.add_argument("--no-memory", type=int, help="this rank has none for a copy")
    parser.add_argument("--patch", help="name and parameters of a patch, as JSON")
    parser.add_argument("--momentum", action="store_true", help="train by SGD with momentum")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    if given.hosts:
        os.uname = lambda: types.SimpleNamespace(nodename=f"host{rank}")
        given.local += str(rank)
    if rank == given.no_memory:
        host_buffer.mmap = types.SimpleNamespace(**vars(host_buffer.mmap) | {"mmap": no_memory})  # for it alone
    if given.kind != "plain":
        meeting_place = os.environ["MEETING_PLACE"]
        world_size = int(os.environ["WORLD_SIZE"])
        atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{meeting_place}", rank=rank, world_size=world_size
        )
        group = torch.distributed.group.WORLD
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # never freed, see jobs/ends_later.py
    if given.patch:
        apply_patches(None, {"FLATOUT_PATCHES": f"[{given.patch}]"})
    random.seed(rank)
    np.random.seed(rank)  # noqa: NPY002
    model = build(given.kind, width=given.width)
    torch.manual_seed(100 + rank)
    optimizer = make_optimizer(model, has_momentum=given.momentum)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 11], gamma=0.5)
    data = Data(rank)
    try:
        with Checkpointer(
            given.folder,
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            data=data,
            every=given.every,
            local=given.local,
            shared_every=given.shared_every,
            on_error=given.on_error,
        ) as checkpointer:
            start = checkpointer.resume()
            print(f"start {start}", flush=True)
            for step in range(start, given.num_steps):
                loss = train_step(model, optimizer, data.next())
                scheduler.step()
                checkpointer.step(step + 1)
                print(f"step {step + 1} {loss:.9g}", flush=True)
                time.sleep(given.pause)
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    line = digest(model, optimizer)
    if rank == 0:
        given.result.write_text(line)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
