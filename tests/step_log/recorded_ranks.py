"""Ranks of a recording with chosen step times, to test what is read from the step log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from flatout.records.recording import RankRecording, Steps

FIRST_NS = 1_790_000_000_000_000_000


def steps_of(
    duration_s: Sequence[float],
    kind: Sequence[str] | None = None,
    first: int = 0,
    **columns: Mapping[int, float],
) -> Steps:
    """Return steps with these durations; `columns` give seconds by step, such as `checkpoint_s={40: 0.5}`."""
    num = len(duration_s)
    duration = np.array(duration_s, dtype=np.float64)
    filled: dict[str, Any] = {"loader_s": np.zeros(num), "checkpoint_s": np.zeros(num)}
    for name, values in columns.items():
        filled[name] = np.array([values.get(first + step, 0.0) for step in range(num)])
    return Steps(
        number=np.arange(first, first + num, dtype=np.int64),
        start_ns=FIRST_NS + (np.concatenate([[0.0], np.cumsum(duration)[:-1]]) * 1e9).astype(np.int64),
        duration_s=duration,
        num_samples=np.full(num, 16.0),
        num_tokens=np.full(num, np.nan),
        num_backward=np.ones(num, dtype=np.int64),
        loss=np.full(num, np.nan),
        is_skipped=np.zeros(num, dtype=np.bool_),
        kind=tuple(kind or [""] * num),
        **filled,
    )


def rank_of(rank: int, steps: Steps, world_size: int = 2) -> RankRecording:
    return RankRecording(
        rank=rank,
        world_size=world_size,
        hostname="node0",
        device=None,
        backend="gloo",
        torch="2.13.0",
        steps_from="optimizer",
        steps=steps,
        settled_step=10,
        untraced_step_s=float(np.median(steps.duration_s)),
        num_untraced_steps=10,
        traced_steps=(),
        recorder_s=0.0,
        flops_by_type=None,
        flops_problem=None,
        peak_memory_bytes=None,
        num_alloc_retries=None,
        ended_by="exit",
        problems=(),
    )
