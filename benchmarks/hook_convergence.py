"""How trainings with compressed or rarer exchanges converge, beside plain ones, at equal samples.

A small language model learns the characters of this repository's documentation on four gloo ranks, for each way to
exchange and each of three seeds; the loss on text that it has not seen is kept. Everything else is equal: the first
weights, the batches, the learning rates. SGD with momentum trains it in one table, AdamW in the other.

    python benchmarks/hook_convergence.py --steps 300 --out build/hook_convergence.json

With `--function STEPS`, two ranks learn a small function instead (`tests/inside/gradient_hooks/learning.py`), which
takes a minute; the losses are relative to those of a model that always says the mean.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
RANKS, SEEDS = 4, (1, 2, 3)
CONTEXT, WIDTH, BATCH = 32, 64, 8
RATES = {"SGD": 0.2, "AdamW": 3e-3}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bf16": {"hook": "bf16"},
    "fp16": {"hook": "fp16"},
    "int8": {"hook": "int8"},
    "powersgd-1": {"hook": "powersgd", "rank": 1, "start": 10},
    "powersgd-2": {"hook": "powersgd", "rank": 2, "start": 10},
    "topk-1%": {"hook": "topk", "percent": 1},
    "topk-10%": {"hook": "topk", "percent": 10},
    "topk-1%+momentum": {"hook": "topk", "percent": 1, "momentum": True},
    "topk-10%+momentum": {"hook": "topk", "percent": 10, "momentum": True},
    "local-sgd=8": {"every": 8, "is_outer": False},
    "local-sgd=32": {"every": 32, "is_outer": False},
    "diloco=8": {"every": 8, "is_outer": True},
    "diloco=32": {"every": 32, "is_outer": True},
}
ONLY_SGD = {"topk-1%+momentum", "topk-10%+momentum"}


def text() -> str:
    pages = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md"])
    return "".join(page.read_text() for page in pages)[:300_000]


class Language:
    """Characters of the documentation, and batches of them."""

    def __init__(self) -> None:
        import torch

        written = text()
        characters = sorted(set(written))
        places = {character: place for place, character in enumerate(characters)}
        data = torch.tensor([places[character] for character in written])
        self.num_characters = len(characters)
        self.seen, self.unseen = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]

    def batch(self, source: Any, count: int, generator: Any) -> tuple[Any, Any]:
        import torch

        starts = torch.randint(len(source) - CONTEXT - 1, (count,), generator=generator)
        rows = torch.stack([source[start : start + CONTEXT + 1] for start in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]


def build(num_characters: int) -> Any:
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            self.embed, self.place = nn.Embedding(num_characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(WIDTH, num_characters)
            self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            hidden = self.embed(tokens) + self.place.weight
            return self.head(self.layers(hidden, mask=self.mask, is_causal=True))

    return Model()


def train(language: Language, way: str, optimizer_name: str, seed: int, steps: int) -> float:
    """Train as one rank, and return the loss of the ranks' mean weights on unseen text."""
    import torch
    import torch.distributed as dist
    from tests.inside.gradient_hooks.learning import train as train_with
    from torch import nn

    torch.manual_seed(seed)
    ddp = nn.parallel.DistributedDataParallel(build(language.num_characters))
    if optimizer_name == "SGD":
        optimizer: Any = torch.optim.SGD(ddp.parameters(), lr=RATES["SGD"], momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=RATES["AdamW"])
    generator = torch.Generator().manual_seed(seed * 100 + dist.get_rank())

    def loss_of(net: Any, rows: tuple[Any, Any]) -> Any:
        return nn.functional.cross_entropy(net(rows[0]).flatten(0, 1), rows[1].flatten())

    def loss_of_step(step: int) -> Any:
        for group in optimizer.param_groups:
            group["lr"] = RATES[optimizer_name] * min((step + 1) / 20, 1.0)
        return loss_of(ddp, language.batch(language.seen, BATCH, generator))

    train_with(ddp, optimizer, WAYS[way], loss_of_step, steps)
    with torch.no_grad():
        for parameter in ddp.parameters():
            dist.all_reduce(parameter.div_(dist.get_world_size()))
        numbers = torch.Generator().manual_seed(7)
        losses = [loss_of(ddp.module, language.batch(language.unseen, 64, numbers)).item() for _ in range(8)]
    return statistics.mean(losses)


def run_rank(given: argparse.Namespace) -> None:
    """Train every way as one rank; rank 0 keeps the losses."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    language = Language()
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in given.optimizers:
        for way, seed in [(way, seed) for way in given.ways for seed in SEEDS]:
            losses = kept.setdefault(name, {}).setdefault(way, {})
            if (way in ONLY_SGD and name != "SGD") or str(seed) in losses:
                continue
            began = time.monotonic()
            losses[str(seed)] = round(train(language, way, name, seed, given.steps), 4)
            if dist.get_rank() == 0:
                print(f"{name} {way} seed {seed}: {losses[str(seed)]} in {time.monotonic() - began:.0f} s", flush=True)
                given.out.write_text(json.dumps(kept, indent=1) + "\n")
    dist.barrier()
    os._exit(0)


def learn_function(steps: int) -> dict[str, list[float]]:
    """Learn a function on two ranks, and return the losses of each way by seed."""
    program = ROOT / "tests" / "inside" / "gradient_hooks" / "learning.py"
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29_000 + os.getpid() % 900), "WORLD_SIZE": "2"}
    environment = {**os.environ, **meeting, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(program), str(steps), str(len(SEEDS))]
    ranks = [
        subprocess.Popen(command, env=environment | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    losses: dict[str, list[float]] = json.loads(outputs[0].partition(" ")[2])
    return {way: [round(loss, 4) for loss in values] for way, values in losses.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS), metavar="WAY")
    parser.add_argument("--optimizers", nargs="*", default=list(RATES), choices=list(RATES))
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "hook_convergence.json", help="losses are added")
    parser.add_argument("--function", type=int, metavar="STEPS", help="learn a small function instead")
    given = parser.parse_args()
    if given.function:
        kept = json.loads(given.out.read_text()) if given.out.exists() else {}
        kept[f"a function, {given.function} steps"] = learn_function(given.function)
        given.out.write_text(json.dumps(kept, indent=1) + "\n")
        return
    if "RANK" in os.environ:
        run_rank(given)
        return
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29_000 + os.getpid() % 900), "WORLD_SIZE": str(RANKS)}
    environment = {**os.environ, **meeting, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=environment | {"RANK": str(n)}) for n in range(RANKS)]
    raise SystemExit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
