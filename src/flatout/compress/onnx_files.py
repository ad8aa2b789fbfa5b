"""Write the variants of a model that is a file of ONNX: int8 with scales found at each call, and float16.

In: the user's file and a folder. Out: the path of the variant's file. Raises NotMadeError with the reason if it cannot
be made. The packages `onnx` and `onnxruntime` of this Python make it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

FILE = "model.onnx"


class NotMadeError(Exception):
    """The variant of the file cannot be made."""


def int8_file(model: Path, path: Path) -> None:
    """Write the model with the weights of its matrix multiplications in int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(str(model), str(path), weight_type=QuantType.QInt8)


def float16_file(model: Path, path: Path) -> None:
    """Write the model in float16, with inputs and outputs as before."""
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(str(model)), keep_io_types=True), str(path))


MAKERS: Mapping[str, Callable[[Path, Path], None]] = {
    "file-int8": int8_file,
    "file-fp16": float16_file,
}


def make_file(name: str, model: Path, folder: Path) -> Path:
    """Write the variant of this name into the folder, and return its path."""
    path = folder / FILE
    folder.mkdir(parents=True, exist_ok=True)
    with _quiet():
        try:
            MAKERS[name](model, path)
        except ImportError as error:
            raise NotMadeError(f"{error.name} is not installed in Flatout's environment") from error
        except Exception as error:
            raise NotMadeError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
        if _weight_bytes(path) >= _weight_bytes(model):
            raise NotMadeError("it has no weights that this variant stores in fewer bytes")
    return path


def _weight_bytes(path: Path) -> int:
    """Return the bytes of the tensors that the file stores next to its operators, such as weights of products."""
    import onnx

    tensors = onnx.load(str(path), load_external_data=False).graph.initializer
    kinds = [onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type) for tensor in tensors]
    return sum(math.prod(tensor.dims) * kind.itemsize for tensor, kind in zip(tensors, kinds, strict=True))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the packages advise in their logs off the terminal."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
