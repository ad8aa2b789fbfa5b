"""Read what the recorder kept of the first outputs of a model, on rank 0, in a script that only infers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.records.trial import OutputDigest


class _Tensor(msgspec.Struct, frozen=True, kw_only=True):
    shape: tuple[int, ...]
    norm: float | None = None
    entries: tuple[float, ...] = ()
    answers: tuple[int, ...] = ()
    samples: tuple[tuple[float, ...], ...] = ()


class _Rank(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    calls: dict[int, tuple[_Tensor, ...]]


def read_model_outputs(folder: Path) -> tuple[OutputDigest, ...]:
    """Return the digests in the order of the calls; empty if there are none, or the file is damaged."""
    path = folder / File.MODEL_OUTPUTS.of(0)
    try:
        # Infinite values and NaN are written as strings, which `strict` would refuse.
        rank = decode_json(read_bytes(path), _Rank, strict=False)
    except (OSError, msgspec.DecodeError):
        return ()
    return tuple(
        OutputDigest(call=call, **msgspec.structs.asdict(tensor))
        for call, tensors in sorted(rank.calls.items())
        for tensor in tensors
    )
