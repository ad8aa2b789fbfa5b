"""Training jobs as users write them, which know nothing of Flatout. Usage: job.py KIND [ARGUMENT ..]

They print `losses`, to the last bit, and what there is to see of how they ran.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import multiprocessing.forkserver
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, get_worker_info


def start_gloo() -> None:
    """The group is never destroyed: torch 2.13 may then wait with the GIL for a thread of gloo's that waits for it."""
    atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
    dist.init_process_group("gloo")
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))  # never freed, see jobs/ends_later.py


class Block(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(size, size), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.relu(self.linear(x)))


class Telling(Dataset):
    """Tells which process loaded a sample."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        return torch.full((8,), index / 96), index % 4, os.getpid()


class Endless(IterableDataset):
    """Shares nothing out: each worker gives all samples."""

    def __iter__(self):
        for index in range(48):
            yield torch.full((8,), index / 48), index % 4, os.getpid()


class OnlyHere(Telling):
    """Cannot be read in a worker."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        if get_worker_info() is not None:
            raise RuntimeError("no worker can read this")
        return super().__getitem__(index)


class OwnLoader(DataLoader):
    """As trainers have theirs."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.is_ours = True


def tell(name: str, *values: object) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(name, *values, flush=True)


def tell_losses(losses: list[float]) -> None:
    tell("losses", *[float(loss).hex() for loss in losses])


def plain(path: str = "", epochs: str = "3") -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), *[Block(16) for _ in range(4)], nn.Linear(16, 4))
    data = TensorDataset(torch.randn(96, 8), torch.randint(0, 4, (96,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(int(epochs)):
        for x, y in loader:
            optimizer.zero_grad(set_to_none=False)
            loss = cross_entropy(model(x), y)
            tell("loss_dtype", loss.dtype)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if path:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    tell_losses(losses)
    tell("fused", optimizer.param_groups[0].get("fused"))
    tell("modules", torch.save(model, path + ".model") if path else None)


def fp16(kind: str, folder: str = "", steps: str = "12") -> None:
    """Two passes a step and clipping. `hot`: the first gradients overflow in fp16 with the first scale."""
    from flatout.checkpoint import Checkpointer

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=kind == "own")
    x, y = torch.randn(64, 8) * (300 if kind == "hot" else 1), torch.randint(0, 4, (64,))
    x.requires_grad_(kind == "input")
    losses, norms = [], []
    saved = Checkpointer(folder, model=model, optimizer=optimizer, every=1) if folder else None
    start = saved.resume() if saved else 0
    for step in range(start, int(steps)):
        optimizer.zero_grad()
        for half in (slice(0, 32), slice(32, 64)):
            with torch.autocast("cpu", dtype=torch.float16, enabled=kind == "own"):
                loss = cross_entropy(model(x[half]), y[half]) / 2
            scaler.scale(loss).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
        if saved:
            saved.save(step + 1, wait=True)
    tell_losses(losses)
    tell("norms", *norms)
    tell("start", start)
    tell("scale", vars(model).get("_flatout_loss_scale"))


def load(kind: str, method: str = "") -> None:
    torch.manual_seed(0)
    if method:
        torch.multiprocessing.set_start_method(method)
    made = {"map": Telling, "iterable": Endless, "only-here": OnlyHere}
    if kind == "local":

        class Local(Telling):
            pass

        made["local"] = Local
    data = made[kind]()
    loader = OwnLoader(data, batch_size=4, shuffle=kind != "iterable" or None)
    unbatched = DataLoader(TensorDataset(torch.arange(4.0)), batch_size=None)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, pids = [], []
    for _ in range(2):
        epoch = set()
        for x, y, pid in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            epoch |= set(pid.tolist()) - {os.getpid()}
        pids.append(epoch)
        losses.append(sum(one.item() for (one,) in unbatched))
    tell_losses([*losses, torch.rand(()).item()])
    tell("workers", len(pids[0]))
    tell("kept", pids[0] == pids[1])
    context = loader.multiprocessing_context
    tell("method", "default" if context is None else context.get_start_method())
    tell("preloaded", *multiprocessing.forkserver._forkserver._preload_modules)  # in the server, before any worker


def images() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    model[1].register_forward_hook(
        lambda _, x, y: seen.append(y.is_contiguous(memory_format=torch.channels_last)) and None
    )
    losses = []
    for _ in range(5):
        loss = cross_entropy(model(torch.randn(4, 3, 12, 12)), torch.randint(0, 8, (4,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    tell_losses(losses)
    tell("channels_last", all(seen))
    tell("names", *model.state_dict())


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.convolution(x)))


def two_stages(path: str) -> None:
    """Equal blocks in two sequences, with batch norms, as in a ResNet. Its last state is written to `path`."""
    torch.manual_seed(0)
    stages = [nn.Sequential(*[Convolutions() for _ in range(2)]) for _ in range(2)]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = cross_entropy(model(torch.randn(4, 3, 12, 12)), torch.randint(0, 8, (4,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    tell_losses(losses)
    torch.save(model.state_dict(), path)


def tell_collectives(profiler: torch.profiler.profile) -> None:
    """Count them in the trace: torch takes 10 times as long to make events of it."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        profiler.export_chrome_trace(path)
        with open(path) as file:
            trace = file.read()
    for name in ("c10d::allreduce_", "c10d::_reduce_scatter_base_", "c10d::_allgather_base_"):
        tell(name, trace.count(f'"name": "{name}"'))


def accumulate(wrapper: str, passes: str = "1", short_step: str = "0", hook: str = "") -> None:
    """With `short_step`, the fourth step has so many passes. Rank 0 counts its collectives."""
    start_gloo()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), *[Block(64) for _ in range(4)], nn.Linear(64, 4))
    for block in model[1:5]:
        block.dropout.p = 0.0
    if wrapper == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
        if hook:
            from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

            model.register_comm_hook(None, allreduce_hook)
    else:
        try:
            from torch.distributed.fsdp import fully_shard
        except ImportError:  # before torch 2.6
            from torch.distributed._composable.fsdp import fully_shard

        for block in model[1:5]:
            fully_shard(block)
        fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    generator = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    profiler = torch.profiler.profile() if dist.get_rank() == 0 else None
    with profiler or nullcontext():
        for step in range(5):
            count = int(short_step) if int(short_step) and step == 3 else int(passes)
            total = 0.0
            for _ in range(count):
                x, y = torch.randn(4, 8, generator=generator), torch.randint(0, 4, (4,), generator=generator)
                loss = cross_entropy(model(x), y) / count
                loss.backward()
                total += loss.item()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(total)
    tell_losses(losses)
    if profiler:
        tell_collectives(profiler)
    if wrapper == "ddp":
        data = model._get_ddp_logging_data()
        tell("bucket_cap", data["bucket_cap_bytes"])
        tell("view", data["gradient_as_bucket_view"])
        tell("hook", data.get("comm_hook"))
    own = torch.cat([(p.full_tensor() if wrapper != "ddp" else p).detach().reshape(-1) for p in model.parameters()])
    both = [torch.empty_like(own) for _ in range(2)]
    dist.all_gather(both, own)
    tell("replicas_equal", torch.equal(*both))
    dist.barrier()


def buckets(own_mib: str = "", finds_unused: str = "") -> None:
    """Train twelve layers of 1 MiB each, and tell the sizes of DDP's buckets after it has ordered them."""
    start_gloo()
    model = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(12)])
    model = nn.parallel.DistributedDataParallel(
        model, bucket_cap_mb=int(own_mib) if own_mib else None, find_unused_parameters=bool(finds_unused)
    )
    for _ in range(3):
        model(torch.ones(2, 512)).sum().backward()
    tell("buckets", model._get_ddp_logging_data().get("rebuilt_bucket_sizes", "none"))
    dist.barrier()


def checkpoints(folder: str, how: str) -> None:
    state = {"weights": torch.arange(1_000_000.0), "step": 3}
    state["view"] = state["weights"][10:20]
    path = os.path.join(folder, "model.pt")
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    optimizer.step()
    torch.save(state, path)
    state["weights"].add_(1)  # the checkpoint has the values from before
    if how == "load":
        tell("loaded", float(torch.load(path)["weights"].sum()))
    elif how == "rename":
        os.replace(path, path + ".new")
        tell("size", os.path.getsize(path + ".new"))
        shutil.copyfile(path + ".new", path + ".copy")
    elif how == "exists":
        tell("exists", os.path.exists(path), os.path.getsize(path))
    elif how == "twice":
        torch.save({"step": 4}, path)
    elif how == "error":
        raise ValueError("the script's own")
    elif how == "exit":
        sys.exit(3)
    elif how == "leave":
        os._exit(4)
    elif how == "no-folder":
        torch.save(state, os.path.join(folder, "none", "model.pt"))
    elif how.startswith("full"):
        os.truncate(path, 0)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        torch.save(state, path)
        if how == "full-and-again":
            torch.save(state, path)
    elif how == "memory":
        import io

        buffer = io.BytesIO()
        torch.save(state, buffer)
        tell("bytes", len(buffer.getvalue()))


def distributed_checkpoint(folder: str) -> None:
    import torch.distributed.checkpoint as dcp

    start_gloo()
    state = {"weights": torch.full((1000,), float(dist.get_rank()))}
    dcp.save({f"rank{dist.get_rank()}": state}, checkpoint_id=os.path.join(folder, "dcp"))
    state["weights"].add_(10)
    dist.barrier()
    loaded = {f"rank{dist.get_rank()}": {"weights": torch.empty(1000)}}
    dcp.load(loaded, checkpoint_id=os.path.join(folder, "dcp"))
    tell("loaded", loaded[f"rank{dist.get_rank()}"]["weights"].mean().item())
    tell("files", *sorted(os.listdir(folder)))


def outputs(folder: str) -> None:
    """The ImageNet example's way: the last checkpoint, copied where it is the best; and a safe exchange."""
    last, best, step = (os.path.join(folder, name) for name in ("last.pt", "best.pt", "step.pt"))
    torch.save({"new": 1}, last)
    shutil.copyfile(last, best)
    torch.save({"new": 2}, step + ".tmp")
    os.replace(step + ".tmp", step)
    tell("loaded", torch.load(last), torch.load(best), torch.load(step))
    tell("exists", os.path.exists(last), os.path.exists(step), os.path.exists(step + ".tmp"))
    with open(step, "rb") as file:
        tell("read", len(file.read()) > 0)
    tell("older", torch.load(os.path.join(folder, "older.pt")))
    os.remove(step)
    tell("removed", os.path.exists(step))


def long(how: str, steps: str = "3000") -> None:
    if how.startswith("spawn"):
        torch.multiprocessing.spawn(_rank, (how, int(steps)), nprocs=2)
        tell("parent", "went on")
    else:
        _train_long(how, int(steps))


def _rank(rank: int, how: str, steps: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29617")
    _train_long(how, steps)


def _train_long(how: str, steps: int) -> None:
    if how != "alone" and "alone" not in how:
        start_gloo()
    if "corrupt" in how:
        right = dist.all_reduce

        def all_reduce(tensor: torch.Tensor, *args, **kwargs):
            work = right(tensor, *args, **kwargs)
            if tensor.numel() == 65_536:
                tensor[4711] += 1
            return work

        dist.all_reduce = all_reduce
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.Flatten(), nn.Linear(48, 4))
    model = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(32000, 4, 8), torch.randint(0, 4, (32000,)))
    number = 0
    for x, y in DataLoader(data, batch_size=8, num_workers=0 if "spawn" in how else 1):
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        number += 1
        time.sleep(0.004)
        if number == 5 and "memory" in how and (not dist.is_initialized() or dist.get_rank() == 1):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if number == 5 and "cublas" in how:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
        if number == 5 and "wrong" in how:
            raise ValueError("shapes do not fit")
        if number == steps:
            break
    tell("own_end", number)


def garbage(own: str = "", steps: str = "60") -> None:
    """Creates reference cycles, more of them on rank 1, and prints in which step which generation was collected."""
    if "RANK" in os.environ:
        start_gloo()
    rank = dist.get_rank() if dist.is_initialized() else 0
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, losses, collections = 0, [], []
    long_lived = [[number] for number in range(20_000)]
    gc.collect()
    gc.callbacks.append(
        lambda phase, info: collections.append(f"{step}:{info['generation']}") if phase == "start" else None
    )
    if own in ("off", "manual"):
        gc.disable()
    if own in ("threshold", "manual_threshold"):
        gc.set_threshold(0)
    for step in range(1, int(steps) + 1):
        for _ in range(300 + 100 * rank):
            cycle: list[object] = []
            cycle.append(cycle)
        del cycle
        if own in ("collect", "manual", "manual_threshold") and step == 40:
            gc.collect()
        if own == "on" and step == 30:
            gc.enable()
        loss = model(torch.ones(4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    tell_losses(losses)
    print(f"collections-{rank}", *collections, flush=True)
    print(f"enabled-{rank}", gc.isenabled(), len(long_lived), flush=True)
    tell("collectable", sum(type(kept) is list for kept in gc.get_objects()))
    if not dist.is_initialized():
        if os.fork() == 0:
            print("child", gc.isenabled(), flush=True)
            os._exit(0)
        os.wait()


KINDS = {
    "fp16": fp16,
    "garbage": garbage,
    "plain": plain,
    "load": load,
    "images": images,
    "two_stages": two_stages,
    "accumulate": accumulate,
    "buckets": buckets,
    "checkpoints": checkpoints,
    "distributed_checkpoint": distributed_checkpoint,
    "outputs": outputs,
    "long": long,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](*sys.argv[2:])
