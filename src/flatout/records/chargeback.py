"""Charges for GPU time: the lines of each team and project, their sums, and budgets."""

from __future__ import annotations

from typing import Literal

import msgspec

from flatout.records.attempts import SkippedRow
from flatout.records.cost import Estimate

LineName = Literal["used", "idle_held", "unsplit", "lost"]
LINES: tuple[LineName, ...] = ("used", "idle_held", "unsplit", "lost")
LossCause = Literal["failed", "time-out", "preempted", "requeued", "node failure"]


class CostLine(msgspec.Struct, frozen=True, kw_only=True):
    """Some GPU time of a team and project, in whole GPU-milliseconds, so that lines sum exactly."""

    gpu_ms: int
    gpu_hours: float
    usd: Estimate
    kwh: Estimate
    electricity_usd: Estimate
    kg_co2: Estimate


class TeamCost(msgspec.Struct, frozen=True, kw_only=True):
    """A team (Slurm's account) and a project. None: the accounting has no name."""

    team: str | None
    project: str | None
    num_jobs: int
    num_attempts: int
    total: CostLine
    used: CostLine
    idle_held: CostLine | None  # None: utilization was not measured, so the time is in `unsplit`
    unsplit: CostLine  # used or idle-held: utilization was not measured
    lost: CostLine
    lost_gpu_hours_by_cause: dict[str, float]
    gpu_hours_by_state: dict[str, float]


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a team's budget.

    `over`: the typical cost is above the budget; `will be over`: it is above by the end of the period, at the current
    pace; `may be over`: the highest cost is above it.
    """

    team: str
    budget_usd: float
    spent_usd: Estimate
    expected_usd: float | None  # by the end of the budget's period, at the current pace; None: no period was given
    status: Literal["over", "will be over", "may be over", "within", "unknown", "no jobs"]


class Chargeback(msgspec.Struct, frozen=True, kw_only=True):
    sources: tuple[str, ...]
    teams: tuple[TeamCost, ...]  # by GPU time, most first
    total: TeamCost
    budgets: tuple[BudgetState, ...]
    # share of the GPU time that was not lost for which utilization was measured; None: all was lost
    measured_share: float | None
    from_s: float | None  # first start and last end, by the cluster's clocks
    to_s: float | None
    terms: str
    region: str | None
    num_rows: int
    num_steps: int
    num_repeated: int
    left_out: tuple[SkippedRow, ...]
    notes: tuple[str, ...]
