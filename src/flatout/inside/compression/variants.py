"""The variants by name, and `compress`, which applies one to a model.

from flatout.inside.compression.variants import compress

compress(model, "int8-dynamic", skip=["head"])
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from importlib import import_module
from typing import Any

from flatout.inside.compression.changed import Changed
from flatout.inside.compression.kept_generators import kept_generators

# The module of each variant in this folder; it has a function `compress(model, skip)`.
MODULES: Mapping[str, str] = {
    "bf16": "bf16",
    "int8-dynamic": "int8_dynamic",
    "int8-static": "int8_static",
    "int8-weights": "int8_weights",
    "int4-weights": "int4_weights",
    "fp8": "fp8",
    "onnx": "onnx_session",
    "onnx-int8": "onnx_int8",
    "torchao-int8-dynamic": "torchao_int8_dynamic",
    "torchao-int8-weights": "torchao_int8_weights",
    "torchao-int4-weights": "torchao_int4_weights",
    "torchao-fp8-dynamic": "torchao_fp8_dynamic",
    "torchao-fp8-weights": "torchao_fp8_weights",
    "bitsandbytes-int8": "bitsandbytes_int8",
    "bitsandbytes-nf4": "bitsandbytes_nf4",
    "prune-channels": "prune_channels",
    "prune-channels-half": "prune_channels_half",
    "prune-heads": "prune_heads",
    "2:4": "two_four",
}

OPTIONS: Mapping[str, tuple[str, ...]] = {"int8-static": ("calibration",), "onnx": ("save",), "onnx-int8": ("save",)}
NEED_CALL = frozenset({"onnx", "onnx-int8"})  # variants that export the model, for which they call it


def compress(model: Any, variant: str, skip: Collection[str] = (), **options: Any) -> Changed:
    """Change the model in place, except the modules named in `skip`. Random generators stay as they are.

    `options` are those of the variant: `calibration` of `int8-static`, the file with its ranges; `call` of `onnx` and
    `onnx-int8`, a call of the model that is exported. Raises NotAppliedError if the variant fits nothing in the model,
    and KeyError if there is no such variant.
    """
    module = import_module(f"{__package__}.{MODULES[variant]}")
    with kept_generators():
        changed: Changed = module.compress(model, skip, **options)
    return changed
