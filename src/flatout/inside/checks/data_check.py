"""A known-answer test of the collectives, run if a trial requests it, because some NCCL settings are fast but wrong.

In: FLATOUT_DATA_CHECK=1, when the job is stopped at a step boundary. All ranks reduce and gather numbers whose result
is known exactly, at sizes for which NCCL or gloo takes different code paths. Out: `data-check-rank<R>.json`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
import torch.distributed as dist

from flatout.inside.identity import Identity
from flatout.inside.protocol import File, Variable

SCHEMA, VERSION = "flatout/data-check", 1
_NUM_ELEMENTS = (1, 1023, 65_536, 1_048_576 + 1, 16 * 1_048_576)  # elements of 4 bytes: 4 B to 64 MiB
_PERIOD = 97  # period of the pattern; its sums are exact in 32-bit floats for up to 400 ranks


def check_data(recording: Path, identity: Identity) -> None:
    """Check the collectives if FLATOUT_DATA_CHECK is set. All ranks must be at the same step."""
    has_ranks = dist.is_available() and dist.is_initialized()
    if not has_ranks or os.environ.get(Variable.DATA_CHECK) != "1":
        return
    problems = [check(size) for size in _NUM_ELEMENTS for check in (_reduced, _gathered)]
    wrong = [problem for problem in problems if problem is not None]
    content = {"schema": SCHEMA, "version": VERSION, "rank": identity.rank, "wrong": wrong, "sizes": _NUM_ELEMENTS}
    (recording / File.DATA_CHECK.of(identity.rank)).write_text(json.dumps(content) + "\n", encoding="utf-8")


def _pattern(size: int) -> torch.Tensor:
    is_nccl = "nccl" in str(dist.get_backend())
    device = torch.device("cuda", torch.cuda.current_device()) if is_nccl else torch.device("cpu")
    return torch.arange(size, device=device).remainder(_PERIOD).add(1).to(torch.float32)


def _reduced(size: int) -> str | None:
    pattern, ranks = _pattern(size), dist.get_world_size()
    values = pattern * (dist.get_rank() + 1)
    dist.all_reduce(values)
    return _difference("all_reduce", values, pattern * (ranks * (ranks + 1) // 2))


def _gathered(size: int) -> str | None:
    part = max(size // dist.get_world_size(), 1)
    pattern = _pattern(part)
    parts = [torch.empty_like(pattern) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, pattern * (dist.get_rank() + 1))
    expected = torch.cat([pattern * (rank + 1) for rank in range(len(parts))])
    return _difference("all_gather", torch.cat(parts), expected)


def _difference(operation: str, got: torch.Tensor, expected: torch.Tensor) -> str | None:
    wrong = int((got != expected).sum())
    return f"{operation} of {got.numel()} elements: {wrong} are wrong" if wrong else None
