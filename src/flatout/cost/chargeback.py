"""Charge each team and project for the attempts of its jobs, by their measured usage.

GPU time is added up in whole GPU-milliseconds by line and type of GPU, and priced once at the end: the lines of all
teams sum exactly to the GPU time that the attempts held.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from flatout.catalog.carbon import GridCarbon
from flatout.catalog.prices import Prices, Range, Terms, gpu_named
from flatout.cost.energy import busy_power, energy, idle_power, measured_energy
from flatout.cost.estimates import between, exact, total, unknown
from flatout.cost.money import carbon, electricity, rent
from flatout.cost.split import CAUSES, split
from flatout.records.attempts import Attempts, JobAttempt, Usage
from flatout.records.chargeback import LINES, BudgetState, Chargeback, CostLine, LineName, TeamCost
from flatout.records.cost import Estimate

MS_PER_S = 1000
MS_PER_H = 3_600_000


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """Prices for GPU time and energy."""

    prices: Prices
    terms: Terms = "on-demand"
    usd_per_gpu_hour: Range | None = None  # replaces the prices by type
    gpu: str | None = None  # used if the accounting does not name a type
    grid: GridCarbon | None = None


class _Held:
    """GPU time of one line and type of GPU, with and without measured power."""

    __slots__ = ("gpu_joules", "host_joules", "ms", "unmeasured_ms")

    def __init__(self) -> None:
        self.ms = 0
        self.unmeasured_ms = 0
        self.gpu_joules = 0.0
        self.host_joules = 0.0


class _Account:
    """The sums of one team and project."""

    def __init__(self) -> None:
        self.held: dict[tuple[LineName, str | None], _Held] = defaultdict(_Held)
        self.jobs: set[str] = set()
        self.num_attempts = 0
        self.lost_ms: dict[str, int] = defaultdict(int)
        self.state_ms: dict[str, int] = defaultdict(int)
        self.has_use = False

    def add(self, attempt: JobAttempt, usage: Usage | None) -> None:
        """Add the attempt's GPU time to its lines."""
        lines = split(attempt, usage)
        held_ms = sum(lines.values())
        self.jobs.add(attempt.job)
        self.num_attempts += 1
        self.state_ms[attempt.state] += held_ms
        if lines["lost"]:
            self.lost_ms[CAUSES[attempt.state]] += lines["lost"]
        self.has_use |= usage is not None and usage.busy_share is not None
        for line, line_ms in lines.items():
            for kind, ms in _by_type(attempt, line_ms):
                self._add_energy(self.held[line, kind], ms, held_ms, attempt, usage)

    @staticmethod
    def _add_energy(held: _Held, ms: int, attempt_ms: int, attempt: JobAttempt, usage: Usage | None) -> None:
        held.ms += ms
        if attempt.energy_j is not None:
            held.host_joules += attempt.energy_j * ms / attempt_ms
        elif usage is not None and usage.power_w is not None:
            held.gpu_joules += usage.power_w * ms / MS_PER_S
        else:
            held.unmeasured_ms += ms

    def cost(self, team: str | None, project: str | None, tariff: Tariff) -> TeamCost:
        lines = {line: self._line((line,), tariff) for line in LINES}
        return TeamCost(
            team=team,
            project=project,
            num_jobs=len(self.jobs),
            num_attempts=self.num_attempts,
            total=self._line(LINES, tariff),
            used=lines["used"],
            idle_held=lines["idle_held"] if self.has_use or not lines["unsplit"].gpu_ms else None,
            unsplit=lines["unsplit"],
            lost=lines["lost"],
            lost_gpu_hours_by_cause={cause: ms / MS_PER_H for cause, ms in sorted(self.lost_ms.items())},
            gpu_hours_by_state={state: ms / MS_PER_H for state, ms in sorted(self.state_ms.items())},
        )

    def _line(self, lines: Sequence[LineName], tariff: Tariff) -> CostLine:
        chosen = [(line, kind, held) for (line, kind), held in sorted(self.held.items(), key=str) if line in lines]
        kwh = total([_kwh(line, kind, held, tariff) for line, kind, held in chosen if held.ms])
        gpu_ms = sum(held.ms for _, _, held in chosen)
        return CostLine(
            gpu_ms=gpu_ms,
            gpu_hours=gpu_ms / MS_PER_H,
            usd=total([_rent(kind, held, tariff) for _, kind, held in chosen if held.ms]),
            kwh=kwh,
            electricity_usd=electricity(kwh, tariff.prices.electricity),
            kg_co2=carbon(kwh, tariff.grid) if kwh.value != 0 else exact(0.0),
        )


def chargeback(
    accounting: Attempts,
    usages: Mapping[str, Usage],
    tariff: Tariff,
    *,
    budgets: Mapping[str, float] | None = None,
    budget_period_s: float | None = None,
    checkpoint_interval_s: float | None = None,
) -> Chargeback:
    """Charge each team and project for its attempts.

    `checkpoint_interval_s` is used for jobs without one in `usages`. Budgets are for a period from the first start, or
    for the time in the file.
    """
    charged = [
        (attempt, _with_interval(attempt, usage_of(attempt, usages), checkpoint_interval_s))
        for attempt in accounting.attempts
        if attempt.gpu_seconds
    ]
    accounts: dict[tuple[str | None, str | None], _Account] = defaultdict(_Account)
    everything = _Account()
    for attempt, usage in charged:
        accounts[attempt.account, attempt.project].add(attempt, usage)
        everything.add(attempt, usage)
    teams = [account.cost(*key, tariff) for key, account in accounts.items()]
    teams.sort(key=lambda team: (-team.total.gpu_ms, team.team or "", team.project or ""))
    total_cost = everything.cost(None, None, tariff)
    share_of_period = _share_of_period(accounting, budget_period_s)
    unchecked = _why_unchecked(accounting, has_period=budget_period_s is not None)
    budget_states = [_budget(team, usd, teams, share_of_period, unchecked) for team, usd in (budgets or {}).items()]
    from_s, to_s = _span(accounting.attempts)
    return Chargeback(
        sources=(accounting.path,),
        teams=tuple(teams),
        total=total_cost,
        budgets=tuple(budget_states),
        measured_share=_measured_share(total_cost),
        from_s=from_s,
        to_s=to_s,
        terms=tariff.terms if tariff.usd_per_gpu_hour is None else "as given",
        region=tariff.grid.name if tariff.grid is not None else None,
        num_rows=accounting.num_rows,
        num_steps=accounting.num_steps,
        num_repeated=accounting.num_repeated,
        left_out=accounting.left_out,
        notes=(*accounting.notes, *_notes(accounting, total_cost, usages)),
    )


def _span(attempts: Sequence[JobAttempt]) -> tuple[float | None, float | None]:
    """Return the first start and the last end; None where no attempt has one."""
    starts = [attempt.start_s for attempt in attempts if attempt.start_s is not None]
    ends = [attempt.end_s for attempt in attempts if attempt.end_s is not None]
    return min(starts, default=None), max(ends, default=None)


def _with_interval(attempt: JobAttempt, usage: Usage | None, checkpoint_interval_s: float | None) -> Usage | None:
    """Return the usage, with this checkpoint interval unless it has one."""
    if checkpoint_interval_s is None:
        return usage
    usage = usage or Usage(job=attempt.job)
    if usage.checkpoint_interval_s is not None:
        return usage
    return msgspec.structs.replace(usage, checkpoint_interval_s=checkpoint_interval_s)


def _measured_share(cost: TeamCost) -> float | None:
    """Return the measured share of the GPU time that was not lost; None if all was lost."""
    kept_ms = cost.total.gpu_ms - cost.lost.gpu_ms
    return 1 - cost.unsplit.gpu_ms / kept_ms if kept_ms else None


def usage_of(attempt: JobAttempt, usages: Mapping[str, Usage]) -> Usage | None:
    """Return the usage of the array task, else of the array or heterogeneous job that it belongs to."""
    return usages.get(attempt.job) or usages.get(_parent_job(attempt.job))


def _by_type(attempt: JobAttempt, ms: int) -> Sequence[tuple[str | None, int]]:
    """Split `ms` among the types of GPU, in whole milliseconds that sum to `ms`."""
    num_typed = sum(attempt.gpu_types.values())
    if not ms:
        return []
    if not num_typed:
        return [(None, ms)]
    counts: list[tuple[str | None, float]] = list(attempt.gpu_types.items())
    if attempt.num_gpus > num_typed * (1 + 1e-9):
        counts.append((None, attempt.num_gpus - num_typed))
    num_gpus = sum(count for _, count in counts)
    parts: list[tuple[str | None, int]] = []
    count_so_far, ms_so_far = 0.0, 0
    for kind, count in counts:
        count_so_far += count
        upto_ms = round(ms * count_so_far / num_gpus)
        parts.append((kind, upto_ms - ms_so_far))
        ms_so_far = upto_ms
    last_kind, last_ms = parts[-1]
    parts[-1] = (last_kind, last_ms + ms - ms_so_far)
    return parts


def _gpu_name(kind: str | None, tariff: Tariff) -> str | None:
    """Return the type of GPU. Slurm's type `1g.10gb` gives the size of a slice, but not the type of its GPU."""
    if kind is None:
        return tariff.gpu
    is_slice = kind[1:2] == "g" and gpu_named(kind) is None
    return tariff.gpu if is_slice else kind


def _rent(kind: str | None, held: _Held, tariff: Tariff) -> Estimate:
    name = _gpu_name(kind, tariff)
    price = tariff.usd_per_gpu_hour
    if price is None and name is not None:
        price = tariff.prices.gpu(name, tariff.terms)
    label = f"`{name}` {tariff.terms}" if name is not None else "GPUs whose type Slurm does not report"
    return rent(held.ms / MS_PER_S, price, gpu=label)


def _kwh(line: LineName, kind: str | None, held: _Held, tariff: Tariff) -> Estimate:
    name = _gpu_name(kind, tariff)
    gpu = gpu_named(name) if name is not None else None
    busy, idle = busy_power(gpu, tariff.prices), idle_power(gpu, tariff.prices)
    power = {"used": busy, "lost": busy, "idle_held": idle, "unsplit": between(idle, busy)}[line]
    parts = []
    if held.unmeasured_ms:
        parts.append(energy(held.unmeasured_ms / MS_PER_S, power, tariff.prices))
    if held.gpu_joules:
        parts.append(energy(1.0, exact(held.gpu_joules), tariff.prices))
    if held.host_joules:
        parts.append(measured_energy(held.host_joules, tariff.prices))
    return total(parts)


def _budget(
    team: str, usd: float, teams: Sequence[TeamCost], share_of_period: float | None, unchecked: str | None
) -> BudgetState:
    if unchecked is not None:
        return BudgetState(team=team, budget_usd=usd, spent_usd=unknown(unchecked), expected_usd=None, status="unknown")
    costs = [cost.total.usd for cost in teams if cost.team == team]
    spent = total(costs)
    expected_usd = spent.value / share_of_period if spent.value is not None and share_of_period else None
    return BudgetState(
        team=team,
        budget_usd=usd,
        spent_usd=spent,
        expected_usd=expected_usd,
        status=_budget_status(usd, spent, expected_usd) if costs else "no jobs",
    )


def _why_unchecked(accounting: Attempts, *, has_period: bool) -> str | None:
    """Return why no budget can be checked with this accounting; None if they can."""
    attempts = accounting.attempts
    if not attempts:
        return "no job was read"
    if all(attempt.account is None for attempt in attempts):
        return "the accounting names no team (add the column Account, or pass --team for recordings)"
    if not any(attempt.num_gpus for attempt in attempts):
        return "no attempt held a GPU that was counted"
    if has_period and len(accounting.clocks) > 1:
        return "times with and without a time zone are mixed, so the share of the period is unknown"
    return None


def _budget_status(
    usd: float, spent: Estimate, expected_usd: float | None
) -> Literal["over", "will be over", "may be over", "within", "unknown"]:
    if spent.value is None or spent.high is None:
        return "unknown"
    if spent.value > usd:
        return "over"
    if expected_usd is not None and expected_usd > usd:
        return "will be over"
    return "may be over" if spent.high > usd else "within"


def _share_of_period(accounting: Attempts, period_s: float | None) -> float | None:
    """Return the share of a budget's period that the file covers, from its first start; None if unknown."""
    started = [(attempt.start_s, attempt.elapsed_s) for attempt in accounting.attempts if attempt.start_s is not None]
    if period_s is None or not started:
        return None
    first_s = min(start_s for start_s, _ in started)
    last_s = max(start_s + elapsed_s for start_s, elapsed_s in started)
    return min((last_s - first_s) / period_s, 1.0) or None


def _notes(accounting: Attempts, total_cost: TeamCost, usages: Mapping[str, Usage]) -> Iterable[str]:
    attempts = accounting.attempts
    if accounting.num_steps and not attempts:
        yield f"none of the {accounting.num_rows:,} rows describes a job: all describe job steps"
    elif attempts and not total_cost.total.gpu_ms:
        is_recorded = all(attempt.line == 0 for attempt in attempts)
        question = "" if is_recorded else ": is gres/gpu in Slurm's AccountingStorageTRES?"
        yield f"none of the {len(attempts):,} attempts held a GPU{question}"
    if len(accounting.clocks) > 1:
        yield "times with and without a time zone are mixed: the span, and which attempts are repeated, are uncertain"
    if _lacks_earlier_attempts(attempts):
        yield "no job has a second attempt: without `sacct -D`, Slurm shows only the last attempt of each"
    accounted = {name for attempt in attempts for name in (attempt.job, _parent_job(attempt.job))}
    unmatched = sorted(set(usages) - accounted)
    if unmatched:
        names = ", ".join(unmatched[:3])
        yield f"usage was measured for {len(unmatched):,} jobs that are not in the accounting: {names}"


def _lacks_earlier_attempts(attempts: Sequence[JobAttempt]) -> bool:
    """Whether the accounting seems to have only the last attempt of each job."""
    has_restart = any(attempt.state in ("PREEMPTED", "REQUEUED", "NODE_FAIL") for attempt in attempts)
    num_jobs = len({attempt.job for attempt in attempts})
    return not has_restart and num_jobs == len(attempts) > 1


def _parent_job(job: str) -> str:
    """Return `12` for the array task `12_7` or the part `12+1` of a heterogeneous job."""
    return job.split("_")[0].split("+")[0]
