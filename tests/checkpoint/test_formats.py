"""What is written: safetensors as the safetensors library reads and writes it, and JSON that gives back the same."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from flatout.checkpoint.files import check_file, read_json, write_file, write_json
from flatout.checkpoint.problems import CheckpointError, DamagedError
from flatout.checkpoint.safetensors import DTYPES, lay_out, read_header, view
from flatout.checkpoint.values import decode, encode


def every_dtype() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    tensors = {name: torch.randint(0, 2, (3, 5)).to(dtype) for name, dtype in DTYPES.items()}
    return tensors | {
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "odd": torch.arange(7, dtype=torch.uint8),
    }


def write(path: Path, tensors: dict[str, torch.Tensor]) -> dict[str, int]:
    layout = lay_out({name: (one.dtype, one.shape) for name, one in tensors.items()}, {"format": "pt"})
    data = bytearray(layout.num_bytes)
    for name, place in layout.places.items():
        if place.end > place.begin:
            view(data, place).copy_(tensors[name])
    return write_file(path, [layout.header, data])


def test_the_safetensors_library_reads_what_is_written(tmp_path: Path) -> None:
    tensors = every_dtype()
    write(tmp_path / "one.safetensors", tensors)
    read = load_file(tmp_path / "one.safetensors")
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype and read[name].shape == tensor.shape
        assert torch.equal(read[name].float(), tensor.float())


def test_what_the_safetensors_library_writes_is_read(tmp_path: Path) -> None:
    tensors = every_dtype()
    save_file(tensors, tmp_path / "one.safetensors")
    places, begin = read_header(tmp_path / "one.safetensors")
    data = bytearray((tmp_path / "one.safetensors").read_bytes())
    assert set(places) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(view(data, places[name], begin).float(), tensor.float())


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: (1 << 40).to_bytes(8, "little") + data[8:],
        lambda data: data.replace(b'"F64"', b'"F46"'),
        lambda data: data.replace(b"[0,", b"[1,"),
        lambda data: data.replace(b"{", b"[", 1),
    ],
)
def test_a_damaged_header_is_told(tmp_path: Path, damage: Any) -> None:
    path = tmp_path / "one.safetensors"
    write(path, every_dtype())
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DamagedError, match=r"one\.safetensors"):
        read_header(path)


VALUES = [
    (1, 2.5, (3, "four"), [None, True]),
    {"nan": math.inf, 3: -math.inf, (1, 2): b"\x00\xff"},
    OrderedDict(a=1),
    Counter({5: 1, 11: 2}),
    defaultdict(list, {"a": [1]}),
    {1, 2, 3},
    frozenset("ab"),
    0.1 + 0.2,
    5e-324,
    10**30,
    1 + 2j,
    torch.Size([2, 3]),
    torch.bfloat16,
    torch.device("cpu"),
    range(1, 10, 2),
    {"$": "tensor", "v": "not one"},
    random.getstate(),
    np.float64(0.1),
    "\udc80 and \x00",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_the_same(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value, "v", {}))), {})
    assert back == value and type(back) is type(value)


def test_arrays_and_tensors_come_back_the_same() -> None:
    tensors: dict[str, torch.Tensor] = {}
    value = {"array": np.arange(6, dtype=np.uint32).reshape(2, 3), "tensor": torch.arange(3), "nan": math.nan}
    back = decode(json.loads(json.dumps(encode(value, "v", tensors))), tensors)
    assert back["array"].dtype == np.uint32 and np.array_equal(back["array"], value["array"])
    assert torch.equal(back["tensor"], torch.arange(3)) and list(tensors) == ["v.tensor"]
    assert math.isnan(back["nan"])


leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.text() | st.integers() | st.tuples(st.integers(), st.text())
trees = st.recursive(leaves, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner))


@given(trees)
def test_any_tree_of_values_comes_back_the_same(value: Any) -> None:
    assert repr(decode(json.loads(json.dumps(encode(value, "v", {}))), {})) == repr(value)


class Odd:
    pass


@pytest.mark.parametrize("value", [Odd(), lambda: 0, np.array([Odd()], dtype=object), Path(), Odd])
def test_what_is_no_data_is_refused_in_one_line(value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        encode({"deep": [1, value]}, "scheduler", {})
    assert "`scheduler.deep.1` is a " in str(caught.value) and "omit it" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "given", [{"$": "eval", "v": "1"}, {"$": "dtype", "v": "load"}, {"$": "float", "v": "2"}, {"$": 1}]
)
def test_what_is_not_written_is_not_read(given: Any) -> None:
    with pytest.raises(DamagedError):
        decode(given, {})


def test_every_flipped_bit_and_every_missing_byte_of_a_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.safetensors"
    expected = write_file(path, [b"some bytes", memoryview(b"and more")])
    check_file(path, expected)
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        altered = bytearray(data)
        altered[bit // 8] ^= 1 << bit % 8
        path.write_bytes(altered)
        with pytest.raises(DamagedError, match="its checksum differs"):
            check_file(path, expected)
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DamagedError, match=f"is truncated: {length} of {len(data)} bytes"):
            check_file(path, expected)


def test_altered_json_is_found(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    write_json(path, {"step": 12, "files": {"a": 1}})
    assert read_json(path) == {"step": 12, "files": {"a": 1}}
    path.write_bytes(path.read_bytes().replace(b"12", b"13"))
    with pytest.raises(DamagedError, match="its checksum differs"):
        read_json(path)
    path.write_bytes(path.read_bytes()[:9])
    with pytest.raises(DamagedError, match="not complete JSON"):
        read_json(path)
