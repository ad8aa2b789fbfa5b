"""The scaling efficiency of one job at two sizes, and which parts of the step consumed the rest.

In: two diagnoses of jobs with different numbers of ranks. Out: `Scaling`. The efficiency is the throughput per rank of
the larger job over that of the smaller one. Samples per step show the kind of scaling: weak if each rank does as much
work as before, strong if the whole job does. The ideal step is the smaller job's step at the larger job's work per
rank; each part of the larger job's step is compared with its ideal.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Literal

import msgspec

from flatout.records.diagnosis import PART_NAMES, Diagnosis
from flatout.report.rows import mean_parts

SAME = 0.05  # relative: samples per rank, or per step, that differ by less are the same work
Kind = Literal["weak", "strong", "mixed"]


class LostPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the larger job's traced step, compared with its ideal."""

    part: str
    ideal_s: float
    actual_s: float
    lost_s: float  # actual - ideal
    share: float  # of the larger job's traced step


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """Two sizes of a job. Without samples per step in both, the work and so the efficiency are unknown."""

    smaller: Literal["A", "B"]
    num_ranks: tuple[int, int]  # of the smaller and of the larger job
    kind: Kind | None
    efficiency: float | None  # throughput per rank, larger over smaller
    per_rank_rates: tuple[float, float] | None  # samples (or tokens) per second and rank
    rate_unit: str | None  # samples/s or tokens/s
    work_ratio: float | None  # samples (or tokens) per step, larger over smaller
    if_weak: float  # the efficiency if each rank does the same work in both, by the step times alone
    if_strong: float  # the efficiency if the whole step does
    lost_parts: tuple[LostPart, ...]  # largest loss first; for the known kind, else as if weak


def scaling_of(a: Diagnosis, b: Diagnosis) -> Scaling | None:
    """Return how the job scales from the smaller to the larger diagnosis; None if they have as many ranks."""
    sizes = {"A": _num_ranks(a), "B": _num_ranks(b)}
    if sizes["A"] == sizes["B"]:
        return None
    smaller: Literal["A", "B"] = "A" if sizes["A"] < sizes["B"] else "B"
    small, large = (a, b) if smaller == "A" else (b, a)
    num_small, num_large = _num_ranks(small), _num_ranks(large)
    step_s, large_step_s = _step_s(small), _step_s(large)
    if not step_s or not large_step_s or not num_small:
        return None
    rank_ratio = num_large / num_small
    step_ratio = large_step_s / step_s
    rates, unit, work_ratio = _rates(small, large, step_ratio)
    per_rank = (rates[0] / num_small, rates[1] / num_large) if rates is not None else None
    work_per_rank = work_ratio / rank_ratio if work_ratio is not None else 1.0
    return Scaling(
        smaller=smaller,
        num_ranks=(num_small, num_large),
        kind=_kind(work_ratio, rank_ratio),
        efficiency=per_rank[1] / per_rank[0] if per_rank is not None else None,
        per_rank_rates=per_rank,
        rate_unit=unit,
        work_ratio=work_ratio,
        if_weak=1 / step_ratio,
        if_strong=1 / step_ratio / rank_ratio,
        lost_parts=_lost_parts(small, large, work_per_rank),
    )


def _num_ranks(diagnosis: Diagnosis) -> int:
    return max(diagnosis.job.num_ranks, diagnosis.job.world_size or 0)


def _step_s(diagnosis: Diagnosis) -> float | None:
    """Return the mean step of the recording, or of the trace."""
    mean_s = diagnosis.job.mean_step_s
    return mean_s if isinstance(mean_s, float) else diagnosis.job.step_s


def _rates(
    small: Diagnosis, large: Diagnosis, step_ratio: float
) -> tuple[tuple[float, float] | None, str | None, float | None]:
    """Return the rates of both jobs, their unit, and the ratio of the work per step; None if either lacks them."""
    for name in ("samples_per_s", "tokens_per_s"):
        before, after = (getattr(diagnosis.job, name) for diagnosis in (small, large))
        if isinstance(before, float) and isinstance(after, float) and before > 0 and after > 0:
            return (before, after), name.replace("_per_s", "/s"), after / before * step_ratio
    return None, None, None


def _kind(work_ratio: float | None, rank_ratio: float) -> Kind | None:
    if work_ratio is None:
        return None
    if abs(work_ratio / rank_ratio - 1) <= SAME:
        return "weak"
    return "strong" if abs(work_ratio - 1) <= SAME else "mixed"


def _lost_parts(small: Diagnosis, large: Diagnosis, work_per_rank: float) -> tuple[LostPart, ...]:
    before, after = parts_by_cause(small), parts_by_cause(large)
    if before is None or after is None:
        return ()
    step_s = sum(after.values())
    parts = []
    for part in PART_NAMES:
        ideal_s = before[part] * work_per_rank
        lost_s = after[part] - ideal_s
        if ideal_s or lost_s:
            share = lost_s / step_s if step_s else 0.0
            parts.append(LostPart(part=part, ideal_s=ideal_s, actual_s=after[part], lost_s=lost_s, share=share))
    return tuple(sorted(parts, key=lambda part: -part.lost_s))


def parts_by_cause(diagnosis: Diagnosis) -> Mapping[str, float] | None:
    """Return the parts of a mean traced step, the mean over ranks; a wait for a late rank counts as what made it late.

    None if no rank has steps. The parts sum to the step.
    """
    ranks = [rank for rank in diagnosis.ranks if rank.steps]
    if not ranks:
        return None
    columns = zip(*(mean_parts(rank) for rank in ranks), strict=True)
    parts = {name: sum(column) / len(ranks) for name, column in zip(PART_NAMES, columns, strict=True)}
    blamed: dict[str, float] = defaultdict(float)
    for blame in diagnosis.blame:
        if blame.part in parts and blame.part != "wait":
            blamed[blame.part] += blame.wait_s / len(ranks) / len(ranks[0].steps)
    total_s = sum(blamed.values())
    share = min(parts["wait"] / total_s, 1.0) if total_s else 0.0
    for part, seconds in blamed.items():
        parts[part] += share * seconds
    parts["wait"] = max(parts["wait"] - share * total_s, 0.0)
    return parts
