"""Encode values that are not tensors as JSON: numbers, text, containers, and a few named types; nothing executable.

In: a state dict's values. Out: JSON, and separately the tensors in them, under the names by which the JSON refers to
them. `{"$": TYPE, ..}` marks what JSON cannot represent. A value of any other type is refused, with its name, its type
and a workaround.
"""

from __future__ import annotations

import base64
import importlib
import math
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from flatout.checkpoint.problems import CheckpointError, DamagedError

_TAG = "$"
# Not a dependency: only a process that uses numpy has numpy values, and only one that saved some reads them back.
_NUMPY = "numpy"
_PAIRS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
_LISTS: dict[str, Any] = {"tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}


def numpy() -> Any:
    return importlib.import_module(_NUMPY)


def encode(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Return `value` as JSON and add its tensors to `tensors`. `name` is its name, such as `scheduler.last_epoch`."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if kind is list:
        return _encoded_items(value, name, tensors)
    is_plain = kind is dict and all(type(key) is str for key in value) and _TAG not in value
    if is_plain:
        return {key: encode(item, f"{name}.{key}", tensors) for key, item in value.items()}
    if (marked := _marked(value, name, tensors)) is not None:
        return marked
    raise CheckpointError(
        f"`{name}` is a {kind.__module__}.{kind.__qualname__}, which a checkpoint cannot hold as data",
        hint="omit it, or pass an object whose state_dict() has only numbers, text, containers and tensors",
    )


def _marked(value: Any, name: str, tensors: dict[str, torch.Tensor]) -> dict[str, Any] | None:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {_TAG: "tensor", "v": name, "device": value.device.type}
    for tag, container in _PAIRS.items():
        if kind is container:
            return {_TAG: tag, "v": _pairs(value, name, tensors)}
    for tag, container in _LISTS.items():
        if kind is container:
            return {_TAG: tag, "v": _encoded_items(value, name, tensors)}
    if kind in (bytes, bytearray):
        return {_TAG: kind.__name__, "v": base64.b64encode(value).decode()}
    if kind is complex:
        return {_TAG: "complex", "v": [encode(part, name, tensors) for part in (value.real, value.imag)]}
    if kind in (torch.dtype, torch.device):
        return {_TAG: kind.__name__, "v": str(value).removeprefix("torch.")}
    if kind is range:
        return {_TAG: "range", "v": [value.start, value.stop, value.step]}
    if _NUMPY in sys.modules and (array := _numpy(value)) is not None:
        return array
    if isinstance(value, defaultdict) and value.default_factory in (None, int, float, list, dict):
        factory = value.default_factory
        return {_TAG: "defaultdict", "of": factory.__name__ if factory else None, "v": _pairs(value, name, tensors)}
    return None


def _placed(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return the tensor on the kind of device that it was saved from, if possible, e.g. a CUDA graph's rate."""
    return tensor.cuda() if device == "cuda" and torch.cuda.is_available() else tensor


def _pairs(value: Mapping[Any, Any], name: str, tensors: dict[str, torch.Tensor]) -> list[Any]:
    return [[encode(key, name, tensors), encode(item, f"{name}.{key}", tensors)] for key, item in value.items()]


def _encoded_items(values: Iterable[Any], name: str, tensors: dict[str, torch.Tensor]) -> list[Any]:
    return [encode(item, f"{name}.{index}", tensors) for index, item in enumerate(values)]


def _numpy(value: Any) -> dict[str, Any] | None:
    is_scalar = isinstance(value, numpy().generic)
    if not is_scalar and type(value) is not numpy().ndarray:
        return None
    if value.dtype.hasobject or value.dtype.names:
        return None
    data = base64.b64encode(value.tobytes()).decode()
    return {_TAG: "numpy", "dtype": value.dtype.str, "shape": list(value.shape), "v": data, "scalar": is_scalar}


def decode(given: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """Return the decoded value. Raise DamagedError for anything that `encode` does not write."""
    if isinstance(given, list):
        return [decode(item, tensors) for item in given]
    if not isinstance(given, dict):
        return given
    if _TAG not in given:
        return {key: decode(item, tensors) for key, item in given.items()}
    try:
        return _unmarked(given[_TAG], given, tensors)
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedError(f"a value of type `{given[_TAG]}` cannot be read") from error


def _unmarked(tag: str, given: dict[str, Any], tensors: Mapping[str, torch.Tensor]) -> Any:
    value = given["v"]
    match tag:
        case "tensor":
            return _placed(tensors[value], given["device"])
        case "numpy":
            return _array(given)
        case "defaultdict":
            return defaultdict(_FACTORIES[given["of"]], _decoded_pairs(value, tensors))
        case "complex":
            return complex(*(decode(part, tensors) for part in value))
    if tag in _PAIRS:
        return _PAIRS[tag](_decoded_pairs(value, tensors))
    if tag in _LISTS:
        return _LISTS[tag](decode(item, tensors) for item in value)
    if tag in _PLAIN:
        return _PLAIN[tag](value)
    raise ValueError(tag)


def _decoded_pairs(pairs: Any, tensors: Mapping[str, torch.Tensor]) -> dict[Any, Any]:
    return {decode(key, tensors): decode(item, tensors) for key, item in pairs}


def _array(given: dict[str, Any]) -> Any:
    data = base64.b64decode(given["v"])
    array = numpy().frombuffer(data, dtype=given["dtype"]).reshape(given["shape"]).copy()
    return array[()] if given["scalar"] else array


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(name)
    return dtype


# How to read the types whose value holds no other values.
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "float": {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}.__getitem__,
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "dtype": _dtype,
    "device": torch.device,
    "range": lambda numbers: range(*map(int, numbers)),
}
_FACTORIES: dict[str | None, Any] = {None: None, "int": int, "float": float, "list": list, "dict": dict}
