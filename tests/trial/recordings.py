"""Recordings made by hand, as `profile/` reads them back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flatout.records.events import Quality
from flatout.records.recording import GpuUse, HostUse, Measured, RankRecording, Recording, Steps

START_UNIX_S = 1_700_000_000.0


def rank(
    number: int = 0,
    durations_s: Sequence[float] = (0.5, 0.1, 0.1, 0.1, 0.1),
    *,
    settled: int | None = 1,
    losses: Sequence[float] | None = None,
    kind: Sequence[str] | None = None,
    first: int = 0,
) -> RankRecording:
    """A rank whose steps follow each other without a gap, the first 10 s after the command was started."""
    durations = np.array(durations_s, dtype=np.float64)
    count = len(durations)
    starts_s = np.concatenate([[0.0], np.cumsum(durations)[:-1]]) if count else durations
    nothing = np.full(count, math.nan)
    return RankRecording(
        rank=number,
        world_size=2,
        hostname="host",
        device=None,
        backend="gloo",
        torch="2.13.0",
        steps_from="optimizer",
        steps=Steps(
            number=np.arange(first, first + count),
            start_ns=((START_UNIX_S + 10 + starts_s) * 1e9).astype(np.int64),
            duration_s=durations,
            loader_s=np.zeros(count),
            checkpoint_s=np.zeros(count),
            num_samples=nothing,
            num_tokens=nothing,
            num_backward=np.ones(count, dtype=np.int64),
            loss=nothing if losses is None else np.array(losses, dtype=np.float64),
            is_skipped=np.zeros(count, dtype=np.bool_),
            kind=tuple(kind) if kind is not None else ("",) * count,
        ),
        settled_step=settled,
        untraced_step_s=None,
        num_untraced_steps=0,
        traced_steps=(),
        recorder_s=0.0,
        flops_by_type=None,
        flops_problem=None,
        peak_memory_bytes=None,
        num_alloc_retries=None,
        ended_by="exit",
        problems=(),
    )


def measured(**values: float) -> Measured:
    absent = dict.fromkeys(
        (
            "step_s",
            "loader_s",
            "samples_per_s",
            "tokens_per_s",
            "flops_per_step",
            "mfu",
            "peak_memory_bytes",
            "num_alloc_retries",
        )
    )
    return Measured(**{**absent, **values})  # type: ignore[arg-type]


def recording(
    folder: Path,
    *ranks: RankRecording,
    numbers: Measured | None = None,
    gpus: Sequence[GpuUse] = (),
    problems: Sequence[str] = (),
) -> Recording:
    return Recording(
        path=str(folder),
        ranks=ranks,
        hosts=(HostUse(hostname="host", num_samples=5, cores_allowed=8.0, gpus=tuple(gpus)),) if gpus else (),
        runs=(),
        measured=numbers or measured(),
        problems=tuple(Quality(problem=problem, effect="") for problem in problems),
        traced_ranks=tuple(rank.rank for rank in ranks if rank.traced_steps),
    )


def failure(folder: Path, number: int, exception: str, message: str, *, kind: str = "error", unix_s: float) -> None:
    """What a rank leaves of the exception that ended it."""
    line = {"rank": number, "kind": kind, "exception": exception, "message": message, "unix_s": unix_s}
    (folder / f"failure-{number}.json").write_text(json.dumps(line))
