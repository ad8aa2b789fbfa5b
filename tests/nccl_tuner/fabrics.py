"""Simulated fabrics with known laws, and tunings on real CPU ranks that measure them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from flatout.nccl_tuner.plan import Law, SimulatedFabric
from flatout.nccl_tuner.tuning import TuningRequest, tune_nccl
from flatout.records.nccl_tuning import Case, CollectiveWork, GroupShape, NcclTuning

KIB, MIB = 1 << 10, 1 << 20
SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 16 * MIB)
# Of the ranks: without what a launcher may have set for the tests.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
DEFAULT = Law(latency_s=100e-6, bytes_per_s=3e9)


def work(
    *collectives: str, sizes: Sequence[int] = SIZES, num_ranks: int = 2, calls_per_step: float | None = None
) -> CollectiveWork:
    cases = [
        Case(collective=collective, shape=0, num_bytes=size, calls_per_step=calls_per_step)
        for collective in collectives
        for size in sizes
    ]
    return CollectiveWork(
        shapes=(GroupShape(groups=(tuple(range(num_ranks)),)),),
        cases=tuple(cases),
        source="a test",
        is_standard=calls_per_step is None,
    )


def tuned(
    folder: Path,
    of_work: CollectiveWork,
    *laws: Law,
    transport: str = "nvlink",
    noise: float = 0.02,
    seed: int = 0,
    said: list[str] | None = None,
) -> NcclTuning:
    fabric = SimulatedFabric(transport=transport, noise=noise, seed=seed, law=(*laws, DEFAULT))
    request = TuningRequest(
        backend="simulated",
        transport=transport,
        num_ranks=of_work.shapes[0].num_ranks,
        work=of_work,
        folder=folder,
        time_s=600.0,
        fabric=fabric,
    )
    lines: list[str] = [] if said is None else said
    return tune_nccl(request, lines.append, ENVIRONMENT)
