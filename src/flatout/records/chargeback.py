"""Who is charged for which GPU time: the lines of each team and project, their sums, and budgets."""

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
    """A team (Slurm's account) and a project. None: the accounting names none."""

    team: str | None
    project: str | None
    num_jobs: int
    num_attempts: int
    total: CostLine
    used: CostLine
    idle_held: CostLine | None  # None: no use was measured, so it is in `unsplit`
    unsplit: CostLine  # used or idle-held: no use was measured
    lost: CostLine
    lost_gpu_hours_by_cause: dict[str, float]
    gpu_hours_by_state: dict[str, float]


class BudgetState(msgspec.Struct, frozen=True, kw_only=True):
    """What of a team's budget is spent. `over`: its typical cost is above; `will be over`: at its pace so far it is
    by the period's end; `may be over`: its highest cost is above.
    """

    team: str
    budget_usd: float
    spent_usd: Estimate
    expected_usd: float | None  # by the end of the budget's period at this pace; None: no period was given
    status: Literal["over", "will be over", "may be over", "within", "unknown", "no jobs"]


class Chargeback(msgspec.Struct, frozen=True, kw_only=True):
    sources: tuple[str, ...]
    teams: tuple[TeamCost, ...]  # by GPU time
    total: TeamCost
    budgets: tuple[BudgetState, ...]
    measured_share: float | None  # of the GPU time that was not lost, with measured use; None: there is none
    from_s: float | None  # first start and last end, by the cluster's clocks
    to_s: float | None
    terms: str
    region: str | None
    num_rows: int
    num_steps: int
    num_repeated: int
    left_out: tuple[SkippedRow, ...]
    notes: tuple[str, ...]
