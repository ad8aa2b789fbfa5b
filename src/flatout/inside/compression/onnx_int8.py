"""onnx-int8: the export to ONNX with weights in int8; the scales of inputs are found at each call."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.first_model import FirstCall
from flatout.inside.compression.onnx_session import export, run_in_session


def compress(model: Any, skip: Collection[str] = (), *, call: FirstCall, save: str | None = None) -> Changed:
    """Export the module that was called, quantize the file, and let a session run it from now on."""
    with tempfile.TemporaryDirectory(prefix="flatout-onnx-") as folder:
        dense, path = Path(folder) / "dense.onnx", Path(save or f"{folder}/model.onnx")
        export(call, dense, skip)
        quantize(dense, path)
        return run_in_session(call, path)


def quantize(dense: Path, path: Path) -> None:
    """Write the file with weights in int8. What onnxruntime advises in its log is not shown."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(str(dense), str(path), weight_type=QuantType.QInt8)
    finally:
        logging.disable(logging.NOTSET)
