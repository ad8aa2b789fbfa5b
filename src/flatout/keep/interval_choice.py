"""Choose a job's checkpoint interval from measured costs, and rank ways to reduce the cost of its failures.

In: `checkpoints.jsonl`, as `flatout.checkpoint` writes it, and the ledger's totals. Out: an `IntervalChoice`, and the
gains of four improvements. Costs that have not been measured yet are assumed, and marked as such.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from flatout.input_files import decode_json, read_lines
from flatout.keep.interval import DAY_S, RSC_1, Costs, FailureRate, best_interval, improvements, measured_costs
from flatout.keep.ledger import Totals
from flatout.records.ledger import LedgerImprovement
from flatout.units import number, seconds

HOURS = 720.0  # thirty days, for which the gains are reported
_RECENT = 100  # checkpoints; older ones are ignored, because the model or the disk may have changed since
_MOST_S = 1e9  # 30 years
_ASSUMED = {"stall_s": 1.0, "write_s": 30.0, "detect_s": 10.0, "restart_s": 120.0}


class IntervalChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint interval and everything that it was chosen from; stored as a line of the ledger."""

    every_s: float
    low_s: float  # from here to `high_s`, goodput is within 0.1 % of the best
    high_s: float
    stall_s: float
    write_s: float
    detect_s: float
    restart_s: float
    num_checkpoints: int  # checkpoints whose cost was measured
    assumed: tuple[str, ...]  # names of those of the four costs above that were not measured
    num_failures: int  # failures of this job
    failures: float  # `num_failures` plus the failures that the published rate is worth as a prior
    node_days: float
    num_nodes: int

    def describe(self) -> str:
        costs = f"{seconds(self.stall_s)} of training and {seconds(self.write_s)} until written"
        each = (
            f"each costs {costs} (measured, {number(self.num_checkpoints)})"
            if self.num_checkpoints
            else f"each is assumed to cost {costs} until one is measured"
        )
        per_1000 = 1000 * self.failures / self.node_days
        return (
            f"a checkpoint every {seconds(self.every_s)} "
            f"({seconds(self.low_s)} to {seconds(self.high_s)} are equally good), "
            f"unless the script sets an interval: {each}; {per_1000:.3g} failures per 1,000 node-days, "
            f"from {number(self.num_failures)} observed and a published rate"
        )

    def improvements(self, num_devices: int, price_per_h: float | None) -> tuple[LedgerImprovement, ...]:
        """Return the improvements for `num_devices` over 30 days, the largest gain first."""
        found = improvements(
            Costs(stall_s=self.stall_s, write_s=self.write_s, detect_s=self.detect_s, restart_s=self.restart_s),
            FailureRate(failures=self.failures, node_days=self.node_days, source=""),
            num_nodes=self.num_nodes,
            gpus_per_node=num_devices / self.num_nodes,
            hours=HOURS,
            price_per_gpu_hour=price_per_h,
        )
        names = {"detection time": "detect_s", "restart time": "restart_s", "write time": "write_s"}
        return tuple(
            LedgerImprovement(
                name=one.name,
                value=one.value,
                is_assumed=names.get(one.name) in self.assumed,
                gain_device_h=one.gpu_hours,
                gain_cost=one.money,
            )
            for one in found
        )


def choose(folder: Path, totals: Totals, *, num_nodes: int) -> IntervalChoice:
    """Choose an interval. `folder` is the folder of `flatout.checkpoint`; it need not exist yet."""
    seen, assumed = _after_failures(totals)
    lines = _committed(folder / "checkpoints.jsonl")
    costs = measured_costs(lines, **seen)
    if costs is None:
        assumed += ["stall_s", "write_s"]
        costs = Costs(stall_s=_ASSUMED["stall_s"], write_s=_ASSUMED["write_s"], **seen)
    days = totals.allocated_ns / 1e9 / max(totals.num_devices or 1, 1) / DAY_S
    rate = RSC_1.after(totals.num_not_the_jobs, days * num_nodes)
    found = best_interval(costs, rate, num_nodes)
    return IntervalChoice(
        # Save often until the cost of a checkpoint is known: the first checkpoint measures it.
        every_s=found.interval_s if lines else found.low_s,
        low_s=found.low_s,
        high_s=found.high_s,
        stall_s=costs.stall_s,
        write_s=costs.write_s,
        detect_s=costs.detect_s,
        restart_s=costs.restart_s,
        num_checkpoints=len(lines),
        assumed=tuple(assumed),
        num_failures=totals.num_not_the_jobs,
        failures=rate.failures,
        node_days=rate.node_days,
        num_nodes=num_nodes,
    )


def _after_failures(totals: Totals) -> tuple[dict[str, float], list[str]]:
    """Return the seconds that detection and restart cost per failure, and the names of those that are assumed."""
    devices = max(totals.num_devices or 1, 1)
    num_restarts = totals.num_attempts - totals.num_runs

    def mean_s(name: str, count: int) -> float | None:
        value_s = totals.ns.get(name, 0) / 1e9 / devices
        return value_s / count if count > 0 and value_s > 0 else None

    restart_s = mean_s("restart", num_restarts)
    if restart_s is None:
        restart_s = mean_s("start_up", totals.num_runs)
    found = {"detect_s": mean_s("hang", totals.num_hangs), "restart_s": restart_s}
    assumed = [name for name, value in found.items() if value is None]
    return {name: _ASSUMED[name] if value is None else value for name, value in found.items()}, assumed


class _Committed(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a checkpoint that was committed."""

    outcome: Literal["committed"]
    stall_s: Annotated[float, msgspec.Meta(ge=0, le=_MOST_S)]
    until_committed_s: Annotated[float, msgspec.Meta(ge=0, le=_MOST_S)]


def _committed(path: Path) -> Sequence[Mapping[str, Any]]:
    """Return the costs of the most recent committed checkpoints; damaged lines are skipped."""
    costs: list[Mapping[str, Any]] = []
    with suppress(OSError):
        for line in read_lines(path):
            with suppress(msgspec.DecodeError):  # of another outcome, or truncated
                committed = decode_json(line, _Committed)
                costs.append(msgspec.to_builtins(committed))
    return costs[-_RECENT:]
