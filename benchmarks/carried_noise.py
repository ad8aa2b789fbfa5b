"""How far float noise carries in ResNet-50 at its usual learning rate, and what the gate on losses makes of it.

    python benchmarks/carried_noise.py [--batch 8] [--size 48] [--steps 8] [--out results.json]

ResNet-50 with its usual start and a learning rate of 0.1 is trained on random images in 32-bit numbers, on the CPU. The
candidates do the same with the inputs, weights, outputs and gradients of each convolution rounded to the 10 bits of
TF32, in which GPUs compute convolutions by default, or to 9 bits; or their updates are wrong: with 0.5, 0.9 or 2 times
the learning rate. Each is held against two runs of the job by `check_losses`, without and with a run whose weights were
disturbed as `inside.other_rounding` does on a GPU. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from flatout.records.change import Change, ChangeSet, Knob
from flatout.records.trial import BASELINE, TrialResult
from flatout.trial.gates import check_losses

DISTURBANCE = 2.0**-8
CANDIDATES: dict[str, dict[str, Any]] = {
    "TF32": {"bits": 10},
    "9 bits": {"bits": 9},
    "half the update": {"scale": 0.5},
    "0.9 of the update": {"scale": 0.9},
    "twice the update": {"scale": 2.0},
}
LAYERS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride


def rounded(values: Tensor, bits: int) -> Tensor:
    dropped = 23 - bits
    whole = values.contiguous().view(torch.int32)
    return ((whole + (1 << (dropped - 1))) & ~((1 << dropped) - 1)).view(torch.float32)


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor, bits: int) -> Tensor:
        context.bits = bits
        return rounded(values, bits)

    @staticmethod
    def backward(context: Any, *gradients: Any) -> Any:
        return rounded(gradients[0], context.bits), None


class Convolution(nn.Conv2d):
    bits: int | None = None  # of all convolutions

    def forward(self, values: Tensor) -> Tensor:
        bits = Convolution.bits
        if bits is None:
            return super().forward(values)
        inputs, weight = Rounding.apply(values, bits), Rounding.apply(self.weight, bits)  # type: ignore[no-untyped-call]
        return Rounding.apply(self._conv_forward(inputs, weight, None), bits)  # type: ignore[no-untyped-call]


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    made = Convolution(inputs, outputs, size, stride, size // 2, bias=False)
    nn.init.kaiming_normal_(made.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(made, nn.BatchNorm2d(outputs))


class Block(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce, self.middle = convolution(inputs, width, 1), convolution(width, width, 3, stride)
        self.expand = convolution(width, 4 * width, 1)
        is_same = stride == 1 and inputs == 4 * width
        self.short = nn.Identity() if is_same else convolution(inputs, 4 * width, 1, stride)

    def forward(self, values: Tensor) -> Tensor:
        inner = torch.relu(self.middle(torch.relu(self.reduce(values))))
        return torch.relu(self.expand(inner) + self.short(values))


def resnet() -> nn.Sequential:
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for width, num_blocks, stride in LAYERS:
        for place in range(num_blocks):
            layers.append(Block(inputs, width, stride if place == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def train(
    args: argparse.Namespace, *, bits: int | None = None, scale: float = 1.0, is_disturbed: bool = False
) -> list[float]:
    Convolution.bits = bits
    torch.manual_seed(0)
    model = resnet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1 * scale, momentum=0.9, weight_decay=1e-4)
    losses = []
    for step in range(args.steps):
        images, labels = torch.randn(args.batch, 3, args.size, args.size), torch.randint(0, 1000, (args.batch,))
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if is_disturbed and step == 0:
            generator = torch.Generator().manual_seed(20_260_101)
            with torch.no_grad():
                for weight in model.parameters():
                    noise = torch.empty_like(weight).uniform_(-1.0, 1.0, generator=generator)
                    weight.addcmul_(weight, noise, value=DISTURBANCE)
    return losses


def trial(losses: list[float], *, is_disturbed: bool = False) -> TrialResult:
    return TrialResult(
        index=0,
        arm=BASELINE,
        outcome="completed",
        step_s=(0.1,) * 5,
        losses=tuple(losses),
        has_other_rounding=is_disturbed,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--size", type=int, default=48)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    knob = Knob(name="kernels", family="kernels", summary="", safety="exact", doc="", source="")
    changes = ChangeSet(changes=(Change(name=knob.name, knob=knob),))
    job = train(args)
    disturbed = train(args, is_disturbed=True)
    baselines = [trial(job), trial(job)]
    size = sum(job[:5]) / len(job[:5])
    rows: dict[str, Any] = {"the job": {"losses": job}, "disturbed": {"losses": disturbed}}
    for name, how in CANDIDATES.items():
        losses = train(args, **how)
        before = check_losses(trial(losses), baselines, changes)
        after = check_losses(trial(losses), [*baselines, trial(disturbed, is_disturbed=True)], changes)
        rows[name] = {
            "losses": losses,
            "difference": [(mine - own) / size for mine, own in zip(losses, job, strict=True)],
            "before": {"passes": before.is_passed, "reason": before.reason, "may_be_noise": before.may_be_noise},
            "with the disturbed run": {"passes": after.is_passed, "reason": after.reason},
        }
        print(name, "passes" if after.is_passed else "is refused", after.reason, flush=True)
    if args.out is not None:
        settings = {
            "batch": args.batch,
            "size": args.size,
            "torch": torch.__version__,
            "python": platform.python_version(),
        }
        args.out.write_text(json.dumps({**settings, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
