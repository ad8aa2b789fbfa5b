"""Write a small model in the format of ONNX without the package `onnx`: matrix multiplications, each with a Relu.

In: a path, the width of the layers and their number. Out: a file that ONNX Runtime loads, with an input `x` and an
output `y` of shape (batch, width). The encoding is that of protocol buffers; field numbers are from `onnx.proto3`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

_FLOAT = 1
_IR_VERSION, _OPSET = 8, 17


def _varint(value: int) -> bytes:
    encoded = b""
    while value > 0x7F:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode())


def _node(kind: str, inputs: list[str], output: str) -> bytes:
    return b"".join(_text(1, name) for name in inputs) + _text(2, output) + _text(4, kind)


def _weights(name: str, values: np.ndarray) -> bytes:  # type: ignore[type-arg]
    dims = b"".join(_number(1, size) for size in values.shape)
    return dims + _number(2, _FLOAT) + _text(8, name) + _message(9, values.astype("<f4").tobytes())


def _value(name: str, width: int) -> bytes:
    shape = _message(1, _text(2, "batch")) + _message(1, _number(1, width))
    return _text(1, name) + _message(2, _message(1, _number(1, _FLOAT) + _message(2, shape)))


def write_model(path: Path, *, width: int = 64, layers: int = 4) -> None:
    """Write a model with random weights from a fixed seed."""
    random = np.random.default_rng(0)
    graph, before = _text(2, "layers"), "x"
    for number in range(layers):
        weights = random.standard_normal((width, width)) / width**0.5
        graph += _message(5, _weights(f"w{number}", weights))
        graph += _message(1, _node("MatMul", [before, f"w{number}"], f"m{number}"))
        before = "y" if number == layers - 1 else f"r{number}"
        graph += _message(1, _node("Relu", [f"m{number}"], before))
    graph += _message(11, _value("x", width)) + _message(12, _value("y", width))
    model = _number(1, _IR_VERSION) + _message(8, _text(1, "") + _number(2, _OPSET)) + _message(7, graph)
    path.write_bytes(model)
