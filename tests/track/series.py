"""Series with known changes, drawn from seeds; and histories with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.tracking import Commit, Direction, Measure, TrackedResult

Values = NDArray[np.float64]


def noisy(levels: Sequence[float] | Values, *, noise: float = 0.02, seed: int = 0) -> Values:
    """Return levels with independent noise, relative to each level."""
    rng = np.random.default_rng(seed)
    return np.asarray(levels) * np.exp(noise * rng.standard_normal(len(levels)))


def result(
    number: int,
    value: float,
    *,
    job: str = "train",
    machine: str = "2 ranks",
    name: str = "step_s",
    unit: str = "s",
    direction: Direction = "lower",
    parts: dict[str, float] | None = None,
    environment: dict[str, str] | None = None,
    commit: str | None = "",
    branch: str = "main",
    commit_unix_s: float | None = None,
) -> TrackedResult:
    """Return the `number`-th result of a history. An empty `commit` stands for one with its number."""
    measures = [Measure(name=name, value=value, unit=unit, direction=direction)]
    measures += [
        Measure(name=part, value=seconds, unit="s", direction="lower", is_part=True)
        for part, seconds in (parts or {}).items()
    ]
    known = None if commit is None else Commit(id=commit or f"c{number}", unix_s=commit_unix_s, branch=branch)
    return TrackedResult(
        job=job,
        machine=machine,
        source="flatout/diagnosis",
        measures=tuple(measures),
        commit=known,
        environment=environment or {},
        measured_unix_s=1e9 + number,
        digest=f"{job} {machine} {name} {number}",
    )


def write_history(path: Path, results: Sequence[TrackedResult]) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in results))
    return path
