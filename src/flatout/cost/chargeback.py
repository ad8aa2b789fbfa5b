"""Attempts of jobs, and what was measured of them -> what each team and project is charged.

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
from flatout.cost.estimates import between, exact, total
from flatout.cost.money import carbon, electricity, rent
from flatout.cost.split import CAUSES, split
from flatout.records.attempts import Attempts, JobAttempt, Usage
from flatout.records.chargeback import LINES, BudgetState, Chargeback, CostLine, LineName, TeamCost
from flatout.records.cost import Estimate

MS_PER_S = 1000
MS_PER_H = 3_600_000


class Tariff(msgspec.Struct, frozen=True, kw_only=True):
    """With what GPU time is priced."""

    prices: Prices
    terms: Terms = "on-demand"
    usd_per_gpu_hour: Range | None = None  # in place of the prices by type
    gpu: str | None = None  # of GPUs whose type the accounting does not tell
    grid: GridCarbon | None = None


class _Held:
    """GPU time of one line and type: what nobody measured the power of, and what somebody did."""

    __slots__ = ("gpu_joules", "host_joules", "ms", "unmeasured_ms")

    def __init__(self) -> None:
        self.ms = 0
        self.unmeasured_ms = 0
        self.gpu_joules = 0.0
        self.host_joules = 0.0


class _Account:
    """Sums of one team and project."""

    def __init__(self) -> None:
        self.held: dict[tuple[LineName, str | None], _Held] = defaultdict(_Held)
        self.jobs: set[str] = set()
        self.num_attempts = 0
        self.lost_ms: dict[str, int] = defaultdict(int)
        self.state_ms: dict[str, int] = defaultdict(int)
        self.has_use = False

    def add(self, attempt: JobAttempt, usage: Usage | None) -> None:
        self.jobs.add(attempt.job)
        self.num_attempts += 1
        lines = split(attempt, usage)
        held = sum(lines.values())
        self.state_ms[attempt.state] += held
        if lines["lost"]:
            self.lost_ms[CAUSES[attempt.state]] += lines["lost"]
        self.has_use |= usage is not None and usage.busy_share is not None
        power_w = usage.power_w if usage is not None else None
        for line, ms in lines.items():
            for kind, part_ms in _by_type(attempt, ms):
                into = self.held[line, kind]
                into.ms += part_ms
                if attempt.energy_j is not None:
                    into.host_joules += attempt.energy_j * part_ms / held
                elif power_w is not None:
                    into.gpu_joules += power_w * part_ms / MS_PER_S
                else:
                    into.unmeasured_ms += part_ms

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
    found: Attempts,
    usages: Mapping[str, Usage],
    tariff: Tariff,
    *,
    budgets: Mapping[str, float] | None = None,
    budget_period_s: float | None = None,
    checkpoint_interval_s: float | None = None,
) -> Chargeback:
    """`checkpoint_interval_s` is taken of jobs of which `usages` tells none; budgets are of a period from the first
    start on, or of the time in the file.
    """
    accounts: dict[tuple[str | None, str | None], _Account] = defaultdict(_Account)
    everything = _Account()
    for attempt in found.attempts:
        if not attempt.gpu_seconds:
            continue
        usage = usage_of(attempt, usages)
        if checkpoint_interval_s is not None and (usage is None or usage.checkpoint_interval_s is None):
            usage = msgspec.structs.replace(
                usage or Usage(job=attempt.job), checkpoint_interval_s=checkpoint_interval_s
            )
        accounts[attempt.account, attempt.project].add(attempt, usage)
        everything.add(attempt, usage)
    teams = [account.cost(*key, tariff) for key, account in accounts.items()]
    teams.sort(key=lambda each: (-each.total.gpu_ms, each.team or "", each.project or ""))
    every = everything.cost(None, None, tariff)
    kept_ms = every.total.gpu_ms - every.lost.gpu_ms
    share = _share_of_period(found, budget_period_s)
    return Chargeback(
        sources=(found.path,),
        teams=tuple(teams),
        total=every,
        budgets=tuple(_budget(team, usd, teams, share) for team, usd in (budgets or {}).items()),
        measured_share=1 - every.unsplit.gpu_ms / kept_ms if kept_ms else None,
        from_s=min((each.start_s for each in found.attempts if each.start_s is not None), default=None),
        to_s=max((each.end_s for each in found.attempts if each.end_s is not None), default=None),
        terms=tariff.terms if tariff.usd_per_gpu_hour is None else "as given",
        region=tariff.grid.name if tariff.grid is not None else None,
        num_rows=found.num_rows,
        num_steps=found.num_steps,
        num_repeated=found.num_repeated,
        left_out=found.left_out,
        notes=(*found.notes, *_notes(found, every, usages)),
    )


def usage_of(attempt: JobAttempt, usages: Mapping[str, Usage]) -> Usage | None:
    """Of the array task, else of the whole array or heterogeneous job."""
    return usages.get(attempt.job) or usages.get(_whole(attempt.job))


def _by_type(attempt: JobAttempt, ms: int) -> Iterable[tuple[str | None, int]]:
    """Whole milliseconds of each type of GPU, which sum to `ms`."""
    typed = sum(attempt.gpu_types.values())
    if not ms or not typed:
        return ((None, ms),) if ms else ()
    kinds: list[tuple[str | None, float]] = list(attempt.gpu_types.items())
    if attempt.num_gpus > typed * (1 + 1e-9):
        kinds.append((None, attempt.num_gpus - typed))
    whole = sum(count for _, count in kinds)
    parts, so_far, given = [], 0.0, 0
    for kind, count in kinds:
        so_far += count
        upto = round(ms * so_far / whole)
        parts.append((kind, upto - given))
        given = upto
    last, part = parts[-1]
    parts[-1] = (last, part + ms - given)
    return parts


def _name(kind: str | None, tariff: Tariff) -> str | None:
    """Slurm's type `1g.10gb` says how large a slice is, and not of which GPU."""
    return tariff.gpu if kind is None or (kind[1:2] == "g" and gpu_named(kind) is None) else kind


def _rent(kind: str | None, held: _Held, tariff: Tariff) -> Estimate:
    name = _name(kind, tariff)
    price = tariff.usd_per_gpu_hour
    if price is None and name is not None:
        price = tariff.prices.gpu(name, tariff.terms)
    shown = f"`{name}` {tariff.terms}" if name is not None else "GPUs whose type Slurm does not tell"
    return rent(held.ms / MS_PER_S, price, gpu=shown)


def _kwh(line: LineName, kind: str | None, held: _Held, tariff: Tariff) -> Estimate:
    name = _name(kind, tariff)
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


def _budget(team: str, usd: float, teams: Sequence[TeamCost], share_of_period: float | None) -> BudgetState:
    own = [each.total.usd for each in teams if each.team == team]
    spent = total(own)
    expected = spent.value / share_of_period if spent.value is not None and share_of_period else None
    status: Literal["over", "will be over", "may be over", "within", "unknown", "no jobs"] = "within"
    if not own:
        status = "no jobs"
    elif spent.value is None or spent.high is None:
        status = "unknown"
    elif spent.value > usd:
        status = "over"
    elif expected is not None and expected > usd:
        status = "will be over"
    elif spent.high > usd:
        status = "may be over"
    return BudgetState(team=team, budget_usd=usd, spent_usd=spent, expected_usd=expected, status=status)


def _share_of_period(found: Attempts, period_s: float | None) -> float | None:
    """How much of a budget's period the file covers, from its first start on; None without a period or times."""
    starts = [each.start_s for each in found.attempts if each.start_s is not None]
    if period_s is None or not starts:
        return None
    last_s = max(each.start_s + each.elapsed_s for each in found.attempts if each.start_s is not None)
    return min((last_s - min(starts)) / period_s, 1.0) or None


def _notes(found: Attempts, every: TeamCost, usages: Mapping[str, Usage]) -> Iterable[str]:
    if found.num_steps and not found.attempts:
        yield f"none of the {found.num_rows:,} rows is of a job: all are of steps"
    elif found.attempts and not every.total.gpu_ms:
        is_recorded = all(attempt.line == 0 for attempt in found.attempts)
        why = "" if is_recorded else ": is gres/gpu in Slurm's AccountingStorageTRES?"
        yield f"none of the {len(found.attempts):,} attempts held a GPU{why}"
    is_again = any(attempt.state in ("PREEMPTED", "REQUEUED", "NODE_FAIL") for attempt in found.attempts)
    if not is_again and len({attempt.job for attempt in found.attempts}) == len(found.attempts) > 1:
        yield "no job has a second attempt: without `sacct -D`, Slurm shows only the last of each"
    known = {name for each in found.attempts for name in (each.job, _whole(each.job))}
    unmatched = sorted(set(usages) - known)
    if unmatched:
        yield (
            f"use was measured of {len(unmatched):,} jobs that the accounting does not have: {', '.join(unmatched[:3])}"
        )


def _whole(job: str) -> str:
    """`12` of the array task `12_7` or of the part `12+1` of a heterogeneous job."""
    return job.split("_")[0].split("+")[0]
