"""Small data sets of random images."""

from __future__ import annotations

import random
from pathlib import Path

from PIL import Image

CLASSES = ("ape", "bee", "cat")


def write_image(path: Path, size: tuple[int, int] = (8, 6), seed: int = 0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = random.Random(f"{path.name} {seed}").randbytes(size[0] * size[1] * 3)
    Image.frombytes("RGB", size, pixels).save(path)


def image_folder(root: Path, per_class: int = 12) -> Path:
    """A folder of images by class, some of them in folders of folders, with names in an order that is not numeric."""
    for name in CLASSES:
        for number in range(per_class):
            parent = root / name / "more" if number % 5 == 4 else root / name
            write_image(parent / f"{number}.{'png' if number % 3 else 'JPG'}")
        (root / name / "notes.txt").write_text("not an image")
    return root
