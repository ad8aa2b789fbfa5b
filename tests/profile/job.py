"""A training job as users write them: it knows nothing of Flatout. Prints every loss to the last bit.

Usage: job.py [--steps N] [--mode MODE] [--pause SECONDS] [--workers N] [--spawn METHOD] [--end HOW]
"""

from __future__ import annotations

import argparse
import atexit
import ctypes
import os
import shutil
import signal
import sys
import threading
import time

import torch
import torch.distributed
from torch import nn


class Model(nn.Module):
    """A little of everything whose results could depend on how it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.convolve = nn.Conv1d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm1d(16)
        self.attend = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.convolve(self.embed(tokens).transpose(1, 2))).transpose(1, 2)
        return self.head(self.attend(hidden))


def batches(arguments: argparse.Namespace, rank: int) -> torch.utils.data.DataLoader:
    tokens = torch.randint(
        0, 50, (4 * arguments.steps * arguments.passes, 12), generator=torch.Generator().manual_seed(rank)
    )
    return torch.utils.data.DataLoader(tokens, batch_size=4, shuffle=True, num_workers=arguments.workers)


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def ordinary(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    total = torch.zeros(())
    for number, tokens in enumerate(batches(arguments, rank)):
        loss = loss_of(model, tokens) / arguments.passes
        loss.backward()
        total += loss.detach()
        if (number + 1) % arguments.passes == 0:
            optimizer.step()
            optimizer.zero_grad()
            end_early(arguments, rank, number // arguments.passes)
            print(float(total).hex(), flush=True)
            total = torch.zeros(())
            time.sleep(arguments.pause)


def scaled(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """A GradScaler that finds infinities in every fifth step."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=arguments.mode == "fused-scaler")
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=10_000)
    for number, tokens in enumerate(batches(arguments, rank)):
        loss = loss_of(model, tokens)
        if number % 5 == 4:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        print(float(loss).hex(), flush=True)


def adversarial(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """Two optimizers in turn, each with a backward pass of its own."""
    other = Model()
    first, second = torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.AdamW(other.parameters())
    for tokens in batches(arguments, rank):
        for trained, optimizer in ((model, first), (other, second)):
            loss_of(trained, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()


def fetched_ahead(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """All batches of a step are fetched before its first pass, as some trainers do; and it evaluates now and then."""
    optimizer = torch.optim.AdamW(model.parameters())
    loader = iter(batches(arguments, rank))
    for number in range(arguments.steps):
        if number % 8 == 3:
            inference(model, arguments, rank)
            model.train()
        for tokens in [next(loader) for _ in range(arguments.passes)]:
            loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()


def inference(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    model.eval()
    with torch.no_grad():
        for tokens in batches(arguments, rank):
            loss_of(model, tokens)


def answering(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """Nothing but calls of the model: no loader of torch's, no loss."""
    generator = torch.Generator().manual_seed(rank)
    model.eval()
    with torch.inference_mode():
        for _ in range(arguments.steps):
            model(torch.randint(0, 50, (4, 12), generator=generator))
    if arguments.passes > 1:
        elsewhere = threading.Thread(target=inference_elsewhere, args=(model, arguments.passes))
        elsewhere.start()
        elsewhere.join()


def inference_elsewhere(model: nn.Module, times: int) -> None:
    with torch.inference_mode():
        for _ in range(times):
            model(torch.zeros(4, 12, dtype=torch.int64))


def evaluated_first(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    inference(model, arguments, rank)
    model.train()
    arguments.steps //= 2
    ordinary(model, arguments, rank)


def by_hand(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """No optimizer of torch's, no loader of torch's."""
    generator = torch.Generator().manual_seed(rank)
    for _ in range(arguments.steps):
        loss_of(model, torch.randint(0, 50, (4, 12), generator=generator)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None


def own_profiler(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """The script runs torch.profiler in the middle of what would be traced."""
    optimizer = torch.optim.AdamW(model.parameters())
    for number, tokens in enumerate(batches(arguments, rank)):
        if number == arguments.profile_at:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            profiler.start()
        loss_of(model, tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number == arguments.profile_at:
            profiler.stop()
            print(len(profiler.events()) > 0, flush=True)


def checkpointing(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """Saves after every step: by torch.save, and every other time by torch.distributed.checkpoint."""
    import tempfile

    from torch.distributed.checkpoint import save

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    state = {"weights": torch.zeros(4_000_000)}
    with tempfile.TemporaryDirectory() as folder:
        for number, tokens in enumerate(batches(arguments, rank)):
            loss_of(model, tokens).backward()
            optimizer.step()
            optimizer.zero_grad()
            if number % 2:
                torch.save(state, os.path.join(folder, "state.pt"))
            else:
                save(state, checkpoint_id=os.path.join(folder, "state"), no_dist=True)
        try:
            torch.save(state, os.path.join(folder, "no", "such", "folder"))
        except RuntimeError as error:
            sys.stdout.write(str(error).replace(folder, "folder") + "\n")
        sys.stdout.write(f"{len(torch.load(os.path.join(folder, 'state.pt'))['weights'])}\n")


def evaluating(model: nn.Module, arguments: argparse.Namespace, rank: int) -> None:
    """After every twelfth step rank 0 evaluates, and the other ranks wait for it in their next backward pass.

    However fast the machine, an evaluation takes long enough to make its step a stall.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plain = model.module if hasattr(model, "module") else model
    for number, tokens in enumerate(batches(arguments, rank), 1):
        loss = loss_of(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        sys.stdout.write(f"{float(loss).hex()}\n")
        time.sleep(arguments.pause)
        if number % 12 == 0 and rank == 0:
            plain.eval()
            until_s = time.monotonic() + 0.15
            with torch.no_grad():
                while time.monotonic() < until_s:
                    plain(tokens)
            plain.train()


RESTARTED = ["first-attempt", "raise-in-turn-1", "early-in-turn-1"]
MODES = {
    "checkpointing": checkpointing,
    "evaluating": evaluating,
    "ordinary": ordinary,
    "scaler": scaled,
    "fused-scaler": scaled,
    "adversarial": adversarial,
    "answering": answering,
    "inference": inference,
    "fetched-ahead": fetched_ahead,
    "evaluated-first": evaluated_first,
    "by-hand": by_hand,
    "own-profiler": own_profiler,
}


def end_early(arguments: argparse.Namespace, rank: int, step: int) -> None:
    if arguments.end == "first-attempt":
        if step == arguments.steps // 2 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and rank == 1:
            sys.exit(7)
        return
    if arguments.end in ("raise-in-turn-1", "early-in-turn-1"):
        if step == arguments.steps - 9 and os.environ["FLATOUT_TEST_TURN"] == "1":
            raise ArithmeticError("on purpose")
        return
    if step < arguments.steps - 2 or rank != torch.distributed.is_initialized():
        return
    if arguments.end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif arguments.end == "raise":
        raise ArithmeticError("on purpose")
    elif arguments.end == "exit":
        sys.exit(3)
    elif arguments.end == "lose-folder":
        shutil.rmtree(os.environ["FLATOUT_RECORDING"], ignore_errors=True)


def train(rank: int, world_size: int, arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: nn.Module = Model()
    if world_size > 1:
        if "RANK" not in os.environ:
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": arguments.port}
        store = None
        if arguments.end == "first-attempt":  # torchrun's own store still has addresses of the first attempt
            port = int(arguments.port) + int(os.environ["TORCHELASTIC_RESTART_COUNT"])
            store = torch.distributed.TCPStore("127.0.0.1", port, world_size, is_master=rank == 0)
        atexit.register(time.sleep, 0.1)  # else gloo may abort the process, see jobs/ends_later.py
        torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=world_size)
        group = torch.distributed.group.WORLD
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))  # never freed, see jobs/ends_later.py
        model = nn.parallel.DistributedDataParallel(model)
    if arguments.end == "early-in-turn-1" and os.environ["FLATOUT_TEST_TURN"] == "1":
        if rank == 1:
            time.sleep(3)
            os._exit(5)
        model = Model()  # it trains on its own, and is recorded before rank 1 ends
    print("standard error", rank, file=sys.stderr, flush=True)
    MODES[arguments.mode](model, arguments, rank)
    if world_size > 1:
        torch.distributed.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.0, help="after each step, ordinary or evaluating")
    parser.add_argument("--mode", choices=MODES, default="ordinary")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--spawn", choices=["spawn", "fork"])
    parser.add_argument("--port", default="29533")
    parser.add_argument("--end", choices=["kill", "raise", "exit", "lose-folder", *RESTARTED])
    parser.add_argument("--profile-at", type=int, default=-1)
    arguments = parser.parse_args()
    if arguments.spawn:
        torch.multiprocessing.start_processes(train, (2, arguments), nprocs=2, start_method=arguments.spawn)
    else:
        train(int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1")), arguments)


if __name__ == "__main__":
    main()
