"""A script that only infers, as users write it: `python gpu_inference_job.py MODEL --batch N [--seconds S]`.

The model is a vision transformer or a ResNet-50 with random weights, in 32 bits, without compilation: `vit` is
ViT-B/16, `vit-tiny` and `resnet-tiny` are for a CPU. With `--by-hand` it is as an expert would write it: bf16, compiled
with CUDA graphs, for the ResNet in channels-last. With `--seconds` it ends after as many, and prints the images per
second without those of its warm-up.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

PIXELS = 224
IMAGES = 256  # that are read again and again, in the same order for each size of a batch
TOLD_EVERY = 20  # batches; the warm-up are the first ones


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.first(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Vit(nn.Module):
    """A vision transformer with patches of 16 pixels."""

    def __init__(self, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (PIXELS // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(len(patches), -1, -1), patches], 1) + self.places
        return self.head(self.norm(self.blocks(x)[:, 0]))


class Bottleneck(nn.Module):
    """A block of a ResNet: three convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            *_convolved(before, width, 1, 1),
            nn.ReLU(),
            *_convolved(width, width, 3, stride),
            nn.ReLU(),
            *_convolved(width, 4 * width, 1, 1),
        )
        is_same = stride == 1 and before == 4 * width
        self.shortcut = nn.Identity() if is_same else nn.Sequential(*_convolved(before, 4 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.path(x) + self.shortcut(x))


def _convolved(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after)


def resnet(layers: Sequence[int], width: int) -> nn.Module:
    """Return a ResNet; (3, 4, 6, 3) and 64 are those of ResNet-50."""
    parts: list[nn.Module] = [*_convolved(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = width
    for stage, num in enumerate(layers):
        inner = width * 2**stage
        for place in range(num):
            stride = 2 if stage and not place else 1
            parts.append(Bottleneck(before, inner, stride))
            before = 4 * inner
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


MODELS = {
    "vit": lambda: Vit(768, 12, 12),
    "vit-tiny": lambda: Vit(96, 3, 3),
    "resnet50": lambda: resnet((3, 4, 6, 3), 64),
    "resnet-tiny": lambda: resnet((1, 1, 1, 1), 16),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--by-hand", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = MODELS[options.model]().eval().to(options.device)
    images = torch.randn(IMAGES, 3, PIXELS, PIXELS, device=options.device)
    if options.by_hand and options.model.startswith("resnet"):
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    if options.by_hand:
        model = torch.compile(model, mode="reduce-overhead")
    with torch.inference_mode(), torch.autocast(options.device, torch.bfloat16, enabled=options.by_hand):
        for batch, some in enumerate(itertools.cycle(images.split(options.batch))):
            labels = model(some).argmax(-1)
            if batch % TOLD_EVERY:
                continue
            print("batch", batch, labels[:4].tolist(), flush=True)  # which waits for the GPU
            now_s = time.perf_counter()
            if batch == TOLD_EVERY:
                began_s = now_s
            if options.seconds is not None and batch > TOLD_EVERY and now_s - began_s > options.seconds:
                break
    print(f"{options.batch * (batch - TOLD_EVERY) / (now_s - began_s):.1f} images/s", flush=True)


if __name__ == "__main__":
    main()
