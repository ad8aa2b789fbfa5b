"""Decoding as a loader does it: the right pixels, wrong decoders, and what is said where none is installed."""

from __future__ import annotations

import importlib.util
import io
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter

from flatout.probe.ceilings import decode
from flatout.probe.ceilings.benchmark import Benchmark, CannotMeasureError


def jpeg(backend: str = "Pillow") -> Benchmark:
    return decode._jpeg(backend)


def test_pillow_decodes_what_was_packed_and_a_call_is_one_image() -> None:
    case = jpeg()
    assert case.check() is None
    case.call()
    assert (case.unit, case.work) == ("1/s", 1.0)
    assert case.labels["size"] > 20_000  # of 590 kB of pixels: it was not stored as it is, nor as a plain surface
    assert case.labels["shape"] == (384, 512, 3)


def blurred(image: Any) -> Any:
    return image.filter(ImageFilter.BoxBlur(3))


def a_row_too_low(image: Any) -> Any:
    return Image.fromarray(np.roll(np.asarray(image), 1, axis=0))


def swapped_colours(image: Any) -> Any:
    return Image.fromarray(np.ascontiguousarray(np.asarray(image)[..., ::-1]))


def half_of_it(image: Any) -> Any:
    pixels = np.array(image)
    pixels[192:] = 0
    return Image.fromarray(pixels)


@pytest.mark.parametrize("spoil", [blurred, a_row_too_low, swapped_colours, half_of_it])
def test_a_decoder_that_is_wrong_is_found(spoil: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = jpeg(), Image.Image.convert
    assert case.check() is None
    monkeypatch.setattr(Image.Image, "convert", lambda self, mode: spoil(real(self, mode)))
    assert "pixels are off by" in str(case.check())


def test_an_image_of_another_size_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case, real = jpeg(), Image.Image.convert
    monkeypatch.setattr(Image.Image, "convert", lambda self, mode: real(self, mode).resize((256, 192)))
    assert case.check() == "an image of (192, 256, 3) came out where (384, 512, 3) went in"


def torchvision_of(decoder: Any) -> dict[str, ModuleType]:
    """torchvision.io's two functions as its reference has them, over Pillow: tensors of channels, rows, columns."""

    class Modes:
        RGB = "RGB"

    def encode_jpeg(image: torch.Tensor, quality: int) -> torch.Tensor:
        assert image.shape[0] == 3
        packed = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(packed, "JPEG", quality=quality)
        return torch.frombuffer(bytearray(packed.getvalue()), dtype=torch.uint8)

    root, inner = ModuleType("torchvision"), ModuleType("torchvision.io")
    root.io = inner  # type: ignore[attr-defined]
    inner.encode_jpeg, inner.decode_jpeg, inner.ImageReadMode = encode_jpeg, decoder, Modes  # type: ignore[attr-defined]
    return {"torchvision": root, "torchvision.io": inner}


def decoded(data: torch.Tensor, mode: str) -> torch.Tensor:
    assert data.dtype == torch.uint8
    return torch.from_numpy(np.array(Image.open(io.BytesIO(data.numpy().tobytes())).convert(mode))).permute(2, 0, 1)


def test_torchvision_is_called_as_its_reference_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in torchvision_of(decoded).items():
        monkeypatch.setitem(sys.modules, name, module)
    case = jpeg("torchvision")
    assert case.check() is None
    case.call()
    assert case.labels["backend"] == "torchvision"


def test_a_torchvision_of_another_torch_is_told_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("operator torchvision::decode_jpeg does not exist\nmore")

    modules = torchvision_of(decoded)
    modules["torchvision.io"].encode_jpeg = broken  # type: ignore[attr-defined]
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    with pytest.raises(CannotMeasureError, match="torchvision does not work here: operator torchvision::decode_jpeg"):
        jpeg("torchvision").check()


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def hide(*hidden: str) -> None:
        def find(name: str, *rest: Any) -> Any:
            return None if name in hidden else real("zlib" if name in ("PIL", "torchvision") else name, *rest)

        monkeypatch.setattr(importlib.util, "find_spec", find)

    hide("PIL", "torchvision")
    assert [case.name for case in decode.benchmarks()] == ["decode_zlib"]
    assert decode.lacks() == {
        "decode_jpeg": "neither Pillow nor torchvision is installed here: pip install pillow; zlib is used instead"
    }
    hide("torchvision")
    assert [case.labels["backend"] for case in decode.benchmarks()] == ["Pillow", "zlib"]
    assert decode.lacks() == {"decode_jpeg with torchvision": "it is not installed here"}
    hide()
    assert decode.lacks() == {}
