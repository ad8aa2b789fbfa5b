"""Measure how fast one core decodes training data: JPEG as a user's loader does, and zlib, which needs no library.

JPEG: bytes in memory are decoded to RGB, with each installed decoder that loaders use: Pillow as torchvision's
ImageFolder calls it, and torchvision.io. Reading the file, cropping and resizing are excluded.
"""

from __future__ import annotations

import importlib.util
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flatout.probe.ceilings.benchmark import Benchmark, CannotMeasureError

_IMAGE = (384, 512, 3)  # about the mean size of ImageNet's photographs
_TEXT_BYTES = 1 << 20
_GRAIN = 6.0  # standard deviation of the pixels: a photograph is not smooth
# Mean error of a pixel, out of 255: JPEG of quality 90 is off by 2.9, a smoothed image by 4.8, one shifted by a row by
# 6.9.
_MOST_OFF = 4.0
_DECODERS = {"Pillow": "PIL", "torchvision": "torchvision"}


def benchmarks() -> Iterator[Benchmark]:
    for backend, module in _DECODERS.items():
        if importlib.util.find_spec(module) is not None:
            yield _jpeg(backend)
    yield _zlib()


def lacks() -> dict[str, str]:
    """Return the measurements that are not possible, and why."""
    missing = [name for name, module in _DECODERS.items() if importlib.util.find_spec(module) is None]
    if len(missing) == len(_DECODERS):
        return {
            "decode_jpeg": "neither Pillow nor torchvision is installed here: pip install pillow; zlib is used instead"
        }
    return {f"decode_jpeg with {name}": "it is not installed here" for name in missing}


def picture() -> Any:
    """Return pixels (rows, columns, 3) of 8 bits: waves, a slope, and grain."""
    rows, columns, _ = _IMAGE
    y, x = np.mgrid[0:rows, 0:columns]
    grain = np.random.default_rng(4).normal(0, _GRAIN, (rows, columns, 1))  # in brightness, which JPEG preserves
    waves = np.stack([128 + 100 * np.sin(x / 40), 128 + 100 * np.cos(y / 30), (x + y) / 4], axis=2)
    return (waves + grain).clip(0, 255).astype(np.uint8)


def _pillow() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any], Callable[[Any], Any]]:
    from PIL import Image

    def pack(pixels: Any) -> bytes:
        packed = io.BytesIO()
        Image.fromarray(pixels).save(packed, "JPEG", quality=90)
        return packed.getvalue()

    return pack, lambda data: Image.open(io.BytesIO(data)).convert("RGB"), np.asarray


def _torchvision() -> tuple[Callable[[Any], bytes], Callable[[bytes], Any], Callable[[Any], Any]]:
    import torch
    from torchvision import io as images  # type: ignore[import-not-found, unused-ignore]

    def pack(pixels: Any) -> bytes:
        return bytes(images.encode_jpeg(torch.from_numpy(pixels).permute(2, 0, 1).contiguous(), quality=90).numpy())

    def decode(data: bytes) -> Any:
        # As `decode_image(path)` does: the bytes are in a separate tensor.
        return images.decode_jpeg(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode=images.ImageReadMode.RGB)

    return pack, decode, lambda image: image.permute(1, 2, 0).numpy()


def _jpeg(backend: str) -> Benchmark:
    made: list[Any] = []  # the library, the picture and its bytes, created when first needed
    labels: dict[str, Any] = {"shape": _IMAGE, "threads": 1, "backend": backend}

    def prepared() -> list[Any]:
        if not made:
            try:
                pack, decode, pixels_of = _pillow() if backend == "Pillow" else _torchvision()
                pixels = picture()
                made.extend([decode, pixels_of, pixels, pack(pixels)])
            except (
                ImportError,
                RuntimeError,
                AttributeError,
                OSError,
            ) as error:  # built for another version of torch
                raise CannotMeasureError(f"{backend} does not work here: {str(error).splitlines()[0][:150]}") from error
            labels["size"] = len(made[3])
        return made

    def check() -> str | None:
        decode, pixels_of, pixels, data = prepared()
        found = pixels_of(decode(data))
        if found.shape != _IMAGE:
            return f"an image of {found.shape} came out where {_IMAGE} went in"
        off = float(np.abs(found.astype(np.float64) - pixels).mean())
        return None if off < _MOST_OFF else f"pixels are off by {off:.1f} on average"

    def call() -> None:
        decode, _, _, data = made
        decode(data)

    return Benchmark(
        name="decode_jpeg",
        unit="1/s",
        work=1.0,
        call=call,
        check=check,
        checked="pixels against the picture that was packed",
        who="first",
        labels=labels,
    )


def _zlib() -> Benchmark:
    """Return the benchmark of decompressing text whose words are as frequent as in a language."""
    random = np.random.default_rng(5)
    words = [bytes(random.integers(97, 123, size=length, dtype=np.uint8)) for length in random.integers(2, 10, 4096)]
    order = np.minimum(random.zipf(1.3, _TEXT_BYTES // 4), len(words)) - 1
    text = b" ".join(words[index] for index in order)[:_TEXT_BYTES]
    data = zlib.compress(text, 6)

    def check() -> str | None:
        return None if zlib.decompress(data) == text else "the output differs from what was packed"

    def call() -> None:
        zlib.decompress(data)

    return Benchmark(
        name="decode_zlib",
        unit="B/s",
        work=float(len(text)),
        call=call,
        check=check,
        checked="every byte",
        who="first",
        labels={"size": len(text), "threads": 1, "backend": "zlib"},
    )
