"""Make random data in the formats that public training scripts read, so that they run where nothing can be downloaded.

    python benchmarks/public_script_data.py tokens FOLDER   nanoGPT's train.bin, val.bin and meta.pkl
    python benchmarks/public_script_data.py images FOLDER   an ImageFolder of JPEG files: train/ and val/
    python benchmarks/public_script_data.py mnist FOLDER    the four files of MNIST, as torchvision keeps them

Only the contents are random: the number and size of the files are those that make the scripts load data as usual.
"""

from __future__ import annotations

import pickle
import struct
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

VOCABULARY, NUM_TOKENS = 50257, {"train": 2_000_000, "val": 100_000}
NUM_CLASSES, NUM_IMAGES, SIZE = 10, {"train": 3840, "val": 256}, (500, 375)  # the usual size of an ImageNet picture
NUM_DIGITS = {"train": 60_000, "t10k": 10_000}


def write_tokens(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, length in NUM_TOKENS.items():
        random.integers(0, 256, length, dtype=np.uint16).tofile(folder / f"{name}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": VOCABULARY}))


def write_image(path: Path, seed: int) -> None:
    """Write a JPEG file of about 100 kB: smooth shapes with some noise."""
    from PIL import Image

    random = np.random.default_rng(seed)
    coarse = Image.fromarray(random.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize(
        SIZE, Image.Resampling.BICUBIC
    )
    noise = random.integers(-20, 21, (SIZE[1], SIZE[0], 3))
    pixels = np.clip(np.asarray(coarse, dtype=np.int16) + noise, 0, 255).astype(np.uint8)
    Image.fromarray(pixels).save(path, quality=90)


def write_images(folder: Path) -> None:
    paths = []
    for part, number in NUM_IMAGES.items():
        for index in range(number):
            in_class = folder / part / f"class{index % NUM_CLASSES}"
            in_class.mkdir(parents=True, exist_ok=True)
            paths.append(in_class / f"{index}.jpeg")
    with ProcessPoolExecutor() as pool:
        list(pool.map(write_image, paths, range(len(paths)), chunksize=32))


def write_mnist(folder: Path) -> None:
    """Write files in the IDX format: a magic number, the sizes, the bytes."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for name, number in NUM_DIGITS.items():
        images = random.integers(0, 256, (number, 28, 28), dtype=np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, number, 28, 28) + images.tobytes())
        labels = random.integers(0, 10, number, dtype=np.uint8)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, number) + labels.tobytes())


WRITERS = {"tokens": write_tokens, "images": write_images, "mnist": write_mnist}

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in WRITERS:
        sys.exit(__doc__)
    WRITERS[sys.argv[1]](Path(sys.argv[2]))
