"""A transformer like Llama that learns a rule, for `gpu_compress.py`.

    python gpu_compress_job.py train|eval|infer|by-hand FOLDER [--device cuda] [--tiny] [--batch 32] [--compile]

The rule: the token that follows is a fixed random table's entry for the last two tokens. `train` learns it in float32
with autocast until the answers on other samples are right, and writes bfloat16 weights to FOLDER. `eval` prints the
accuracy on held-out sequences with the result of each sample. `infer` calls the model on a batch until it is stopped,
and prints its own time per call now and then. `by-hand` times each variant in one process, without
Flatout's trials, and prints a line of JSON for each: what the comparisons should agree with.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

WEIGHTS = "weights.pt"


class Size(NamedTuple):
    width: int
    hidden: int
    layers: int
    heads: int
    vocabulary: int
    length: int
    rows: int  # sequences of a training step
    held_out: int  # sequences


FULL = Size(width=4096, hidden=12288, layers=2, heads=32, vocabulary=96, length=128, rows=64, held_out=64)
TINY = Size(width=128, hidden=384, layers=2, heads=4, vocabulary=16, length=32, rows=16, held_out=64)


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (x.shape[-1],), self.scale.to(x.dtype), 1e-5)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        shape = (*x.shape[:2], self.heads, -1)
        queries = turned(self.q_proj(x).view(shape).transpose(1, 2), turns)
        keys = turned(self.k_proj(x).view(shape).transpose(1, 2), turns)
        values = self.v_proj(x).view(shape).transpose(1, 2)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Rotary positions: each pair of dimensions is turned by an angle that grows with the position."""
    one, other = x.chunk(2, dim=-1)
    cosine, sine = turns.to(x.dtype)
    return torch.cat([one * cosine - other * sine, other * cosine + one * sine], dim=-1)


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.before_attention, self.before_hidden = Norm(size.width), Norm(size.width)
        self.attention = Attention(size.width, size.heads)
        self.gate_proj = nn.Linear(size.width, size.hidden, bias=False)
        self.up_proj = nn.Linear(size.width, size.hidden, bias=False)
        self.down_proj = nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before_attention(x), turns)
        inputs = self.before_hidden(x)
        return x + self.down_proj(functional.silu(self.gate_proj(inputs)) * self.up_proj(inputs))


class Model(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.table = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = Norm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        half = size.width // size.heads // 2
        rates = 10_000.0 ** (-torch.arange(half) / half)
        angles = torch.arange(size.length)[:, None] * rates
        self.register_buffer("turns", torch.stack([angles.cos(), angles.sin()]), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        turns = self.turns[:, : tokens.shape[1]]
        for block in self.blocks:
            x = block(x, turns)
        return self.head(self.norm(x))


def started_weights(model: Model, size: Size) -> None:
    deviation = size.width**-0.5
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            scale = (2 * size.layers) ** -0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
            nn.init.normal_(parameter, std=deviation * scale)
    nn.init.normal_(model.table.weight, std=1.0)


def samples(size: Size, count: int, seed: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sequences of random tokens, and the right answer after each token; the first one has none: -100."""
    table = torch.randint(size.vocabulary, (size.vocabulary,) * 2, generator=torch.Generator().manual_seed(0))
    tokens = torch.randint(size.vocabulary, (count, size.length), generator=torch.Generator().manual_seed(seed))
    answers = torch.full_like(tokens, -100)
    answers[:, 1:] = table[tokens[:, 1:], tokens[:, :-1]]
    return tokens.to(device), answers.to(device)


def train(folder: Path, size: Size, arguments: argparse.Namespace) -> None:
    """Train until enough answers on other samples are right, with a smaller step if that leads nowhere."""
    began_s = time.monotonic()
    until_s = began_s + arguments.seconds
    rate = arguments.rate
    model, step, right = trained(size, arguments, rate, began_s + arguments.seconds / 2)
    if right < 0.5:
        rate /= 4
        model, step, right = trained(size, arguments, rate, until_s)
    elif right < arguments.enough:
        model, more, right = trained(size, arguments, rate / 2, until_s, model)
        step += more
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    torch.save(model.to(torch.bfloat16).state_dict(), folder / WEIGHTS)
    took_s = time.monotonic() - began_s
    told = {"steps": step, "rate": rate, "seconds": took_s, "right": right, "parameters": num_parameters}
    print(json.dumps(told), flush=True)


def trained(
    size: Size, arguments: argparse.Namespace, rate: float, until_s: float, model: Model | None = None
) -> tuple[Model, int, float]:
    """Train a new model, or this one, until the time; return it, the number of steps and the share of right answers."""
    device = arguments.device
    torch.manual_seed(0)
    if model is None:
        with torch.device(device):
            model = Model(size)
        started_weights(model, size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=device == "cuda"
    )
    others = samples(size, 16, seed=2, device=device)
    step, right = 0, 0.0
    while right < arguments.enough and time.monotonic() < until_s:
        tokens, answers = samples(size, size.rows, seed=1000 + step, device=device)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(tokens)
        loss = functional.cross_entropy(logits.float().flatten(0, 1), answers.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        if step % 10 == 0:
            graded_answers = graded(model, *others)
            right = sum(graded_answers) / len(graded_answers)
            told = f"rate {rate:g}, step {step}: loss {loss.item():.3f}, right {right:.3f}"
            print(told, file=sys.stderr, flush=True)
    return model, step, right


@torch.no_grad()
def graded(model: nn.Module, tokens: torch.Tensor, answers: torch.Tensor) -> list[int]:
    """Return 1 or 0 for each answer."""
    results: list[int] = []
    for part, right in zip(tokens.split(16), answers.split(16), strict=True):
        found = model(part).argmax(-1)
        results += (found == right)[:, 1:].flatten().int().tolist()
    return results


def loaded(folder: Path, size: Size, device: str) -> Model:
    with torch.device(device):
        model = Model(size)
    model = model.to(torch.bfloat16)
    model.load_state_dict(torch.load(folder / WEIGHTS, map_location=device, mmap=True))
    return model.eval().requires_grad_(False)


def evaluate(folder: Path, size: Size, device: str) -> None:
    model = loaded(folder, size, device)
    right = graded(model, *samples(size, size.held_out, seed=3, device=device))
    print(json.dumps({"accuracy": sum(right) / len(right), "samples": right}))


def infer(folder: Path, size: Size, arguments: argparse.Namespace) -> None:
    """Call the model again and again, each time until its answer is there."""
    device = arguments.device
    model = loaded(folder, size, device)
    if arguments.compile:
        for block in model.blocks:
            block.compile()
    tokens, _ = samples(size, arguments.batch, seed=4, device=device)
    asked = json.loads(os.environ.get("FLATOUT_COMPRESS", "{}"))
    times: list[float] = []
    began_s = last_s = noted_s = time.perf_counter()
    with torch.no_grad():
        for call in range(arguments.calls):
            model(tokens)
            if device == "cuda":
                torch.cuda.synchronize()
            now_s = time.perf_counter()
            times.append(now_s - last_s)
            last_s = now_s
            if now_s - noted_s > 0.5 or call == arguments.calls - 1:
                counted = sorted(times[len(times) // 4 :])
                median_s = counted[len(counted) // 2]
                row = {"variant": asked.get("variant"), "batch": arguments.batch, "pid": os.getpid()}
                row |= {"calls": len(times), "median_ms": median_s * 1e3, "first_s": times[0], "all_s": now_s - began_s}
                print(json.dumps(row), flush=True)
                noted_s = now_s


def by_hand(folder: Path, size: Size, arguments: argparse.Namespace) -> None:
    """Time and grade the untouched model and each variant, one after the other, and the untouched one again."""
    from flatout.inside.compression.layers import num_bytes
    from flatout.inside.compression.variants import compress

    device = arguments.device
    held_out = samples(size, size.held_out, seed=3, device=device)
    for name in ["untouched", *arguments.variants.split(","), "untouched"]:
        row: dict[str, Any] = {"variant": name}
        try:
            model = loaded(folder, size, device)
            with torch.no_grad():
                if name != "untouched":
                    changed = compress(model, name)
                    row |= {"modules": len(changed.names), "notes": changed.notes}
                row["weight_bytes"] = num_bytes(model)
                right = graded(model, *held_out)
                row["accuracy"] = sum(right) / len(right)
                for batch in arguments.batches.split(","):
                    tokens, _ = samples(size, int(batch), seed=4, device=device)
                    row[f"batch_{batch}_ms"] = call_ms(model, tokens, device)
        except Exception as error:  # noqa: BLE001 - the other variants are still to be timed
            row["error"] = f"{type(error).__name__}: {error}".splitlines()[0]
        print(json.dumps(row), flush=True)


@torch.no_grad()
def call_ms(model: nn.Module, tokens: torch.Tensor, device: str) -> float:
    """Return the median time of a call, of those of 0.4 s."""
    times: list[float] = []
    for _ in range(3):
        model(tokens)
    began_s = time.perf_counter()
    while time.perf_counter() - began_s < 0.4 or len(times) < 5:
        call_s = time.perf_counter()
        model(tokens)
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - call_s)
    return sorted(times)[len(times) // 2] * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "eval", "infer", "by-hand"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compile", action="store_true", help="compile each block with torch.compile")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--variants", default="")
    parser.add_argument("--calls", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the training, at most")
    parser.add_argument("--enough", type=float, default=0.96, help="share of right answers at which training ends")
    parser.add_argument("--rate", type=float, default=1e-4)
    arguments = parser.parse_args()
    size = TINY if arguments.tiny else FULL
    if arguments.what == "train":
        train(arguments.folder, size, arguments)
    elif arguments.what == "eval":
        evaluate(arguments.folder, size, arguments.device)
    elif arguments.what == "infer":
        infer(arguments.folder, size, arguments)
    else:
        by_hand(arguments.folder, size, arguments)


if __name__ == "__main__":
    main()
