"""Write the variant of a model that is a folder of Hugging Face: its weights in bfloat16.

In: the user's folder, with files of safetensors and `config.json`. Out: a folder with the same files, in which weights
of float32 are in bfloat16. The format has the length of a header, the header as JSON, and one tensor after another.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import IO, Any

import numpy as np

from flatout.compress.onnx_files import NotMadeError
from flatout.input_files import open_file, read_text, walk_with_links

_WEIGHTS = {".safetensors", ".bin", ".pt"}
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
_ROUND = 0x7FFF  # half of the bits that are dropped, less one: a tie goes to the even number


def bf16_folder(model: Path, folder: Path) -> Path:
    """Write the folder, and return its path."""
    files = sorted(model.glob("*.safetensors"))
    if not files:
        raise NotMadeError("the folder has no files of safetensors")
    try:
        _copy_others(model, folder)
        num_changed = sum(_convert(file, folder / file.name) for file in files)
        _set_type(folder / "config.json")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise NotMadeError(f"its files cannot be read: {error}") from error
    if not num_changed:
        raise NotMadeError("the folder has no weights in float32")
    return folder


def _copy_others(model: Path, folder: Path) -> None:
    """Copy all files but weights, with those in folders."""
    for place, names in walk_with_links(model):
        target = folder / place.relative_to(model)
        target.mkdir(parents=True, exist_ok=True)
        for name in names:
            if Path(name).suffix not in _WEIGHTS:
                with open_file(place / name) as source, (target / name).open("wb") as copy:
                    shutil.copyfileobj(source, copy)


def _convert(before: Path, after: Path) -> int:
    """Convert the float32 tensors of a safetensors file to bfloat16, write the result, and return their number."""
    with open_file(before) as source, after.open("wb") as target:
        header = _header(source)
        start = source.tell()
        names = [name for name in header if name != "__metadata__"]
        names.sort(key=lambda name: header[name]["data_offsets"][0])
        changed = {name for name in names if header[name]["dtype"] == "F32"}
        new: dict[str, Any] = {name: value for name, value in header.items() if name not in names}
        end = 0
        for name in names:
            first, last = header[name]["data_offsets"]
            size = (last - first) // 2 if name in changed else last - first
            kind = "BF16" if name in changed else header[name]["dtype"]
            new[name] = {"dtype": kind, "shape": header[name]["shape"], "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(new).encode()
        text += b" " * (-len(text) % _LENGTH_BYTES)
        target.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for name in names:
            first, last = header[name]["data_offsets"]
            source.seek(start + first)
            data = source.read(last - first)
            target.write(_in_bf16(data) if name in changed else data)
    return len(changed)


def _header(source: IO[bytes]) -> dict[str, Any]:
    length = int.from_bytes(source.read(_LENGTH_BYTES), "little")
    if not 0 < length <= _MOST_HEADER_BYTES:
        raise ValueError(f"{source.name} is not a file of safetensors")
    header = json.loads(source.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{source.name} is not a file of safetensors")
    return header


def _in_bf16(data: bytes) -> bytes:
    """Return float32 numbers rounded to bfloat16; NaN stays NaN."""
    bits = np.frombuffer(data, dtype="<u4")
    is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
    rounded = (bits.astype(np.uint64) + _ROUND + ((bits >> 16) & 1)) >> 16
    return np.where(is_nan, (bits >> 16) | 0x40, rounded).astype("<u2").tobytes()


def _set_type(config: Path) -> None:
    if not config.is_file():
        return
    content = json.loads(read_text(config))
    for name in ("dtype", "torch_dtype"):
        if name in content:
            content[name] = "bfloat16"
    if "dtype" not in content and "torch_dtype" not in content:
        content["torch_dtype"] = "bfloat16"
    config.write_text(json.dumps(content, indent=2), encoding="utf-8")
