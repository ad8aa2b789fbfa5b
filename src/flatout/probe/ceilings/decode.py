"""How quickly one core decodes training data: JPEG with Pillow, and zlib, which stands in where Pillow is absent."""

from __future__ import annotations

import importlib.util
import io
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from flatout.probe.ceilings.case import Case

_IMAGE = (384, 512, 3)  # about the mean of ImageNet's photographs
_TEXT_BYTES = 1 << 20


def cases() -> Iterator[Case]:
    try:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        pass
    else:
        yield _jpeg(Image)
    yield _zlib()


def has_jpeg() -> bool:
    return importlib.util.find_spec("PIL") is not None


def _jpeg(image_module: Any) -> Case:
    rows, columns, _ = _IMAGE
    y, x = np.mgrid[0:rows, 0:columns]
    grain = np.random.default_rng(4).normal(0, 6, _IMAGE)  # a photograph is not smooth
    picture = np.stack([128 + 100 * np.sin(x / 40), 128 + 100 * np.cos(y / 30), (x + y) / 4], axis=2) + grain
    pixels = picture.clip(0, 255).astype(np.uint8)
    packed = io.BytesIO()
    image_module.fromarray(pixels).save(packed, "JPEG", quality=90)
    data = packed.getvalue()

    def decoded() -> Any:
        return np.asarray(image_module.open(io.BytesIO(data)).convert("RGB"))

    def check() -> str | None:
        found = decoded()
        if found.shape != _IMAGE:
            return f"an image of {found.shape} came out where {_IMAGE} went in"
        off = float(np.abs(found.astype(np.float64) - pixels).mean())
        return None if off < 8 else f"pixels are off by {off:.1f} on average"

    def call() -> None:
        decoded()

    return Case(
        name="decode_jpeg",
        unit="1/s",
        work=1.0,
        call=call,
        check=check,
        checked="pixels against the picture that was packed",
        who="first",
        labels={"size": len(data), "shape": _IMAGE, "threads": 1, "backend": "Pillow"},
    )


def _zlib() -> Case:
    """Bytes that come out, of text in which words come as often as in a language."""
    random = np.random.default_rng(5)
    words = [bytes(random.integers(97, 123, size=length, dtype=np.uint8)) for length in random.integers(2, 10, 4096)]
    order = np.minimum(random.zipf(1.3, _TEXT_BYTES // 4), len(words)) - 1
    text = b" ".join(words[index] for index in order)[:_TEXT_BYTES]
    data = zlib.compress(text, 6)

    def check() -> str | None:
        return None if zlib.decompress(data) == text else "what came out is not what was packed"

    def call() -> None:
        zlib.decompress(data)

    return Case(
        name="decode_zlib",
        unit="B/s",
        work=float(len(text)),
        call=call,
        check=check,
        checked="every byte",
        who="first",
        labels={"size": len(text), "threads": 1, "backend": "zlib"},
    )
