"""A small convolutional network and a small transformer on scikit-learn's digits, for `compress_digits.py`.

    python compress_digits_job.py train|eval|infer|distil|qat cnn|transformer|outliers FOLDER [BATCH]

FOLDER has `digits.npz` with 1,797 images of 8 x 8 (`x`, 0 to 1) and their labels (`y`). The first 900 are trained on.
`distil` trains a transformer of a quarter of the width on the answers of the one in FOLDER as well, and `infer` and
`eval` take it as the model `student`. `outliers` is the transformer with two hidden units of its first layer scaled
by 3,000, and their weights in the next matrix by the inverse: it computes the same. `qat` trains with weights that
are rounded to four bits, and prints the accuracy in four bits before and after.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

TRAINED = 900
WIDTHS = {"transformer": 256, "student": 64, "outliers": 256}
OUTLIER = 3000.0


class Rows(nn.Module):
    """A transformer whose tokens are the rows of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(8, width)
        self.places = nn.Parameter(torch.randn(8, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.first(images) + self.places).mean(1))


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name != "cnn":
        return Rows(WIDTHS[name])
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 64, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128 * 16, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def digits(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    data = np.load(folder / "digits.npz")
    return torch.tensor(data["x"], dtype=torch.float32).reshape(-1, 8, 8), torch.tensor(data["y"]).long()


def loaded(name: str, folder: Path) -> nn.Module:
    model = build(name)
    model.load_state_dict(torch.load(folder / f"{name}.pt"))
    return model.eval()


def train(name: str, folder: Path, teacher: nn.Module | None = None) -> None:
    """Train the model; with a teacher, half of the loss is the distance from the teacher's answers."""
    images, labels = digits(folder)
    model = build(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(12 if teacher is None else 24):
        for batch in torch.randperm(TRAINED).split(32):
            logits = model(images[batch])
            loss = functional.cross_entropy(logits, labels[batch])
            if teacher is not None:
                with torch.no_grad():
                    soft = functional.softmax(teacher(images[batch]) / 2, dim=1)
                loss = (loss + 4 * functional.cross_entropy(logits / 2, soft)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if name == "outliers":
        scale_units(model.encoder.layers[0])
    torch.save(model.state_dict(), folder / f"{name}.pt")


@torch.no_grad()
def scale_units(layer: nn.Module, count: int = 2) -> None:
    """Scale the first hidden units of the feed-forward, between which there is a ReLU, and undo it after them."""
    layer.linear1.weight[:count] *= OUTLIER
    layer.linear1.bias[:count] *= OUTLIER
    layer.linear2.weight[:, :count] /= OUTLIER


class Rounded(nn.Module):
    """Weights in four bits, in groups of 32, for the forward pass alone."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        groups = weight.reshape(len(weight), -1, 32)
        least = groups.amin(-1, keepdim=True)
        step = (groups.amax(-1, keepdim=True) - least) / 15
        rounded = (torch.round((groups - least) / step) * step + least).reshape(weight.shape)
        return weight + (rounded - weight).detach()


def quantization_aware(name: str, folder: Path) -> None:
    """Train three epochs more with rounded weights."""
    images, labels = digits(folder)
    model = loaded(name, folder)
    before = in_four_bits(model, images, labels)
    layers = [layer for layer in model.modules() if type(layer) is nn.Linear and layer.in_features % 32 == 0]
    for layer in layers:
        parametrize.register_parametrization(layer, "weight", Rounded())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        for batch in torch.randperm(TRAINED).split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    for layer in layers:
        parametrize.remove_parametrizations(layer, "weight")
    print(json.dumps({"four_bits_before": before, "four_bits_after": in_four_bits(model, images, labels)}))


@torch.no_grad()
def in_four_bits(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    from flatout.inside.compression.variants import compress

    small = copy.deepcopy(model)
    compress(small, "int4-weights")
    right = small.eval()(images[TRAINED:]).argmax(1) == labels[TRAINED:]
    return float(right.float().mean())


def main() -> None:
    what, name, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    if what == "train":
        train(name, folder)
        return
    if what == "distil":
        train("student", folder, loaded(name, folder))
        return
    if what == "qat":
        quantization_aware(name, folder)
        return
    model = loaded(name, folder)
    images, labels = digits(folder)
    with torch.no_grad():
        if what == "eval":
            parts = [model(part).argmax(1) for part in images[TRAINED:].split(64)]
            right = (torch.cat(parts) == labels[TRAINED:]).int().tolist()
            print(json.dumps({"accuracy": sum(right) / len(right), "samples": right}))
            return
        batch = images[: int(sys.argv[4])]
        for _ in range(100_000):
            model(batch)


if __name__ == "__main__":
    main()
