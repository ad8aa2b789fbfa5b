"""How often the gradient gate of `flatout tune` refuses the very same job, and how often it finds wrong gradients.

    python benchmarks/gradient_gate.py [--runs 60] [--draws 1000] [--seeds 10] [--out FILE]

Small trainings are really run, many times each: a GPT, an LSTM and a ResNet with batch norms, with much and with little
data in a step, at their full learning rate, in its warm-up, and with clipped gradients. Without a seed: of the norms of
their first gradients some are drawn as baselines, and another run's as the candidate's, as they are, halved and
doubled; where they are clipped, before that. With a seed: how far the norms of the same training are apart where it
rounds otherwise. One process, on the CPU; no time is measured.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flatout.inside.checks.gradients import NUM_STEPS
from flatout.records.change import ChangeSet
from flatout.records.trial import BASELINE, GradientNorms, TrialResult
from flatout.trial.gradient_gate import check_gradients

CONTEXT, WIDTH = 32, 64
WARM_UP = 2000  # steps, as nanoGPT's
MAX_NORM = 0.1  # where a job clips: far below what most of its steps have
NUM_BASELINES = (3, 6)  # as when a tuning begins, and after three pairs
FACTORS = (1.0, 0.5, 2.0)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Parameter(0.02 * torch.randn(CONTEXT, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.layers(self.tokens(x) + self.places, mask=mask, is_causal=True)).transpose(1, 2)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.lstm, self.head = (
            nn.Embedding(256, WIDTH),
            nn.LSTM(WIDTH, WIDTH, 2, batch_first=True),
            nn.Linear(WIDTH, 256),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.tokens(x))[0]).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.way = nn.Sequential(
            nn.Conv2d(before, after, 3, 2, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.beside = nn.Sequential(nn.Conv2d(before, after, 1, 2, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.way(x) + self.beside(x))


def resnet() -> nn.Module:
    blocks = [Block(before, after) for before, after in ((16, 16), (16, 32), (32, 64))]
    stem = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def text() -> Tensor:
    """Python's own library."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    return torch.tensor(list(b"".join(file.read_bytes() for file in files)))


def texts(data: Tensor, size: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - CONTEXT - 1, (size,))
    picked = torch.stack([data[start : start + CONTEXT + 1] for start in starts])
    return picked[:, :-1], picked[:, 1:]


def images(patterns: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Ten classes, each a pattern under noise."""
    labels = torch.randint(10, (size,))
    return patterns[labels] + torch.randn(size, 3, 16, 16), labels


class Way(msgspec.Struct, frozen=True, kw_only=True):
    """How a job is trained: with a seed, how else its sums may be made."""

    size: int  # samples a step
    warm_up: int = 1  # steps; 1: the full learning rate from the first step on
    seed: int | None = None
    max_norm: float | None = None
    is_fused: bool = False
    is_channels_last: bool = False
    is_bf16: bool = False


Batch = Callable[[int], tuple[Tensor, Tensor]]


class Job:
    def __init__(self, model: Callable[[], nn.Module], batch: Batch, optimizer: Any, rate: float) -> None:
        self.model, self.batch, self.optimizer, self.rate = model, batch, optimizer, rate

    def norms(self, way: Way) -> list[float]:
        """Of its first steps, before clipping."""
        torch.seed() if way.seed is None else torch.manual_seed(way.seed)
        model = self.model()
        if way.is_channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = self.optimizer(model.parameters(), self.rate, fused=way.is_fused)
        found = []
        for step in range(NUM_STEPS):
            optimizer.param_groups[0]["lr"] = self.rate * min((step + 1) / way.warm_up, 1.0)
            x, y = self.batch(way.size)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=way.is_bf16):
                loss = cross_entropy(model(x), y)
            loss.backward()
            norms = [torch.linalg.vector_norm(one.grad) for one in model.parameters() if one.grad is not None]
            found.append(float(torch.linalg.vector_norm(torch.stack(norms))))
            if way.max_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), way.max_norm)
            optimizer.step()
        return found


def jobs() -> dict[str, tuple[Job, tuple[int, int]]]:
    """Each with much and with little data in a step."""
    data, patterns = text(), torch.randn(10, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    of_text, of_images = partial(texts, data), partial(images, patterns)
    return {
        "gpt": (Job(Gpt, of_text, torch.optim.AdamW, 1e-3), (16, 2)),
        "lstm": (Job(Lstm, of_text, torch.optim.Adam, 1e-3), (16, 2)),
        "resnet": (Job(resnet, of_images, partial(torch.optim.SGD, momentum=0.9), 0.1), (16, 4)),
    }


def trial(norms: Sequence[float], max_norm: float | None) -> TrialResult:
    """With a `max_norm` as the optimizer gets them, and before."""
    used = GradientNorms(num_parameters=1, norms=tuple(norms))
    if max_norm is not None:
        clipped = tuple(min(norm, max_norm) for norm in norms)
        used = GradientNorms(num_parameters=1, norms=clipped, unclipped=used.norms)
    gradients = (used,)
    return TrialResult(index=0, arm=BASELINE, outcome="completed", gradients=gradients)


def without_a_seed(job: Job, way: Way, num_runs: int, num_draws: int) -> dict[str, float]:
    """Shares of draws that are refused, by the number of baselines and by what the gradients were multiplied by."""
    runs = np.array([job.norms(way) for _ in range(num_runs)])
    means = np.log(runs).mean(axis=1)
    found = {
        "sd_of_a_runs_mean": float(means.std(ddof=1)),
        "sd_of_a_step": float(np.log(runs).std(axis=0, ddof=1).mean()),
    }
    random = np.random.default_rng(0)
    for num_baselines in NUM_BASELINES:
        drawn = [random.permutation(num_runs)[: num_baselines + 1] for _ in range(num_draws)]
        for factor in FACTORS:
            refused = [
                not check_gradients(
                    trial(factor * runs[one], way.max_norm),
                    [trial(runs[other], way.max_norm) for other in others],
                    ChangeSet(),
                ).is_passed
                for one, *others in drawn
            ]
            found[f"refused_{factor:g}x_of_{num_baselines}"] = float(np.mean(refused))
    return found


def with_a_seed(job: Job, size: int, num_seeds: int) -> dict[str, float]:
    """How far norms are apart, at most and relative, where the same training rounds otherwise."""
    ways = {
        "fused": Way(size=size, is_fused=True),
        "channels_last": Way(size=size, is_channels_last=True),
        "bf16": Way(size=size, is_bf16=True),
    }
    found: dict[str, float] = {}
    for name, way in ways.items():
        if name == "channels_last" and job.model is not resnet:
            continue
        both = [
            [job.norms(msgspec.structs.replace(one, seed=seed)) for one in (Way(size=size), way)]
            for seed in range(num_seeds)
        ]
        apart = np.log(np.array(both))
        apart = apart[:, 1] - apart[:, 0]
        found[f"{name}_first_step"] = float(np.abs(apart[:, 0]).max())
        found[f"{name}_mean"] = float(np.abs(apart.mean(axis=1)).max())
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    unseeded, seeded = {}, {}
    for name, (job, sizes) in jobs().items():
        seeded[f"{name}, {sizes[0]} a step"] = with_a_seed(job, sizes[0], arguments.seeds)
        for size in sizes:
            ways = {
                "full rate": Way(size=size),
                "warm-up": Way(size=size, warm_up=WARM_UP),
                "clipped": Way(size=size, max_norm=MAX_NORM),
            }
            for word, way in ways.items():
                case = f"{name}, {size} a step, {word}"
                unseeded[case] = without_a_seed(job, way, arguments.runs, arguments.draws)
                print(case, unseeded[case], file=sys.stderr, flush=True)
    document = {
        "conditions": {
            "runs": arguments.runs,
            "draws": arguments.draws,
            "seeds": arguments.seeds,
            "num_steps": NUM_STEPS,
            "torch": torch.__version__,
            "machine": platform.machine(),
        },
        "without_a_seed": unseeded,
        "with_a_seed": seeded,
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
