"""A trace of spot instances -> what a job would have cost on spot, on demand and on both, and whether it was in time.

The job needs `num_instances` at once, works for `work_s` on them, saves a checkpoint after every interval of work
(which stops it for the checkpoint's cost), and each start takes `restart_s` without work. When instances are taken, it
falls back to its last checkpoint. Instances are paid for while they are held. On demand they are always there.

- spot: on spot instances whenever there are enough, else it waits.
- on-demand: on them from the start to the end.
- mix: Uniform Progress (Wu et al., "Can't Be Late", NSDI '24): spot whenever there are enough; without,
  on demand only while the job is behind an even pace to the deadline, and back only once it is ahead of the pace by two
  changeovers; when no more time is left than on demand needs, on demand to the end. It decides when capacity changes
  and every `DECIDE_EVERY_S`, knows nothing of the future, and has no parameter. The paper's
  last rule is for a job that waits; here it makes one leave spot too, with what is not saved counted as undone.

Each strategy is replayed from many starts, evenly spaced over the trace.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.errors import InputError, UsageError
from flatout.records.spot import STRATEGIES, Availability, SpotAdvice, SpotTrace, Strategy, StrategyResult

NUM_STARTS = 200
DECIDE_EVERY_S = 300.0
WANTED_MET_SHARE = 0.95
S_PER_H = 3600.0
Z = 1.959964  # of the normal distribution, 95 %


class SpotJob(msgspec.Struct, frozen=True, kw_only=True):
    work_s: float
    deadline_s: float
    checkpoint_interval_s: float
    checkpoint_cost_s: float = 0.0
    restart_s: float = 300.0
    num_instances: int = 1

    @property
    def cycle_s(self) -> float:
        return self.checkpoint_interval_s + self.checkpoint_cost_s

    def duration_s(self, work_s: float) -> float:
        """Of that much work without a loss, from a checkpoint on; none is saved at its end."""
        return work_s + max(math.ceil(work_s / self.checkpoint_interval_s) - 1, 0) * self.checkpoint_cost_s

    def done_s(self, running_s: float) -> float:
        """Work done in that time, from a checkpoint on."""
        cycles, rest = divmod(max(running_s, 0.0), self.cycle_s)
        return cycles * self.checkpoint_interval_s + min(rest, self.checkpoint_interval_s)

    def saved_s(self, running_s: float) -> float:
        """Of it, what a checkpoint holds."""
        return max(running_s, 0.0) // self.cycle_s * self.checkpoint_interval_s


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """One start."""

    finish_s: float | None  # since the start; None: not within the trace
    spot_s: float
    on_demand_s: float
    num_losses: int
    lost_work_s: float


class _Capacity:
    """Whether there are enough instances: a step function with equal steps joined."""

    def __init__(self, trace: SpotTrace, num_instances: int) -> None:
        self.end_s = trace.end_s
        self.times_s: list[float] = []
        self.is_enough: list[bool] = []
        for time_s, count in zip(trace.times_s, trace.counts, strict=True):
            if not self.is_enough or self.is_enough[-1] != (count >= num_instances):
                self.times_s.append(time_s)
                self.is_enough.append(count >= num_instances)

    def at(self, time_s: float) -> tuple[bool, float]:
        """Whether there are enough, and until when that stays so."""
        place = bisect_right(self.times_s, time_s) - 1
        until_s = self.times_s[place + 1] if place + 1 < len(self.times_s) else self.end_s
        return self.is_enough[place], until_s


def availability(trace: SpotTrace, num_instances: int) -> Availability:
    capacity = _Capacity(trace, num_instances)
    ends = [*capacity.times_s[1:], capacity.end_s]
    spans = [
        (is_enough, end - start)
        for start, end, is_enough in zip(capacity.times_s, ends, capacity.is_enough, strict=True)
    ]
    held_s = sum(span for is_enough, span in spans if is_enough)
    num_losses = sum(is_enough for is_enough, _ in spans[:-1])
    return Availability(
        num_instances=num_instances,
        share=held_s / trace.end_s,
        num_losses=num_losses,
        mean_time_to_loss_s=held_s / num_losses if num_losses else None,
        longest_gap_s=max((span for is_enough, span in spans if not is_enough), default=0.0),
    )


def replay(trace: SpotTrace, job: SpotJob, strategy: Strategy, start_s: float) -> Replay:
    """The strategy from this moment of the trace on."""
    return _Replayed(_Capacity(trace, job.num_instances), job, strategy, start_s).run()


def youngs_interval_s(checkpoint_cost_s: float, mean_time_to_loss_s: float) -> float:
    """J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974: sqrt(2 C M)."""
    return math.sqrt(2 * checkpoint_cost_s * mean_time_to_loss_s)


class _Replayed:
    """The state of one replay. `running_s` counts from the end of the restart; negative: it still starts."""

    def __init__(self, capacity: _Capacity, job: SpotJob, strategy: Strategy, start_s: float) -> None:
        self.capacity, self.job, self.strategy = capacity, job, strategy
        self.start_s = self.now_s = start_s
        self.on: Strategy | None = None  # "spot" or "on-demand"
        self.base_s = 0.0  # work in the checkpoint that it runs from
        self.running_s = 0.0
        self.held_s = {"spot": 0.0, "on-demand": 0.0}
        self.is_final = False  # on demand to the end
        self.num_losses = 0
        self.lost_work_s = 0.0

    def run(self) -> Replay:
        while self.now_s < self.capacity.end_s:
            is_enough, until_s = self.capacity.at(self.now_s)
            if self.on == "spot" and not is_enough:
                self._lose()
            self._move(self._wanted(is_enough))
            if self.strategy == "mix" and not self.is_final:
                until_s = min(until_s, self._next_decision_s())
            if self._advance(until_s):
                return self._told(self.now_s - self.start_s)
        if self.on == "on-demand":  # where the trace ends, it goes on
            self._advance(math.inf)
            return self._told(self.now_s - self.start_s)
        return self._told(None)

    def _told(self, finish_s: float | None) -> Replay:
        return Replay(
            finish_s=finish_s,
            spot_s=self.held_s["spot"],
            on_demand_s=self.held_s["on-demand"],
            num_losses=self.num_losses,
            lost_work_s=self.lost_work_s,
        )

    def _next_decision_s(self) -> float:
        since = self.now_s - self.start_s
        return self.start_s + (math.floor(since / DECIDE_EVERY_S + 1e-9) + 1) * DECIDE_EVERY_S

    def _work_s(self) -> float:
        return self.base_s + self.job.done_s(self.running_s)

    def _is_last_moment(self) -> bool:
        """No more time is left than on demand needs from here; what runs on spot may yet lose what is not saved."""
        job = self.job
        saved_s = self.base_s + (job.saved_s(self.running_s) if self.on == "spot" else job.done_s(self.running_s))
        left_s = self.start_s + job.deadline_s - self.now_s
        needed_s = job.checkpoint_cost_s + job.restart_s + job.duration_s(job.work_s - saved_s)
        return left_s - DECIDE_EVERY_S < needed_s

    def _pace_s(self, time_s: float) -> float:
        """Work that an even pace has done by then."""
        return self.job.work_s * min((time_s - self.start_s) / self.job.deadline_s, 1.0)

    def _wanted(self, is_enough: bool) -> Strategy | None:
        if self.strategy == "on-demand":
            return "on-demand"
        if self.strategy == "spot":
            return "spot" if is_enough else None
        self.is_final = self.is_final or self._is_last_moment()
        if self.is_final:
            return "on-demand"
        if self.on == "on-demand":
            is_ahead = self._work_s() >= self._pace_s(self.now_s + 2 * self.job.restart_s)
            if not is_ahead:
                return "on-demand"
            return "spot" if is_enough else None
        if is_enough:
            return "spot"
        return "on-demand" if self._work_s() < self._pace_s(self.now_s) else None

    def _move(self, to: Strategy | None) -> None:
        """By choice: what is done is saved first, which takes a checkpoint's cost."""
        if to == self.on:
            return
        saving_s = self.job.checkpoint_cost_s if self.on is not None and to is not None else 0.0
        self.base_s = self._work_s()
        self.running_s = -self.job.restart_s - saving_s
        self.on = to

    def _lose(self) -> None:
        done_s, saved_s = self.job.done_s(self.running_s), self.job.saved_s(self.running_s)
        self.num_losses += 1
        self.lost_work_s += done_s - saved_s
        self.base_s += saved_s
        self.running_s = 0.0
        self.on = None

    def _advance(self, until_s: float) -> bool:
        """To that time, or to the job's end: True."""
        if self.on is None:
            self.now_s = until_s
            return False
        left_s = self.job.duration_s(self.job.work_s - self.base_s) - self.running_s
        span_s = min(left_s, until_s - self.now_s)
        self.running_s += span_s
        self.held_s[self.on] += span_s
        self.now_s += span_s
        return span_s >= left_s - 1e-9


def spot_advice(
    trace: SpotTrace,
    job: SpotJob,
    *,
    spot_usd_per_h: float,
    on_demand_usd_per_h: float,
    is_interval_youngs: bool = False,
    num_starts: int = NUM_STARTS,
    wanted_met_share: float = WANTED_MET_SHARE,
) -> SpotAdvice:
    """Prices are of one instance. InputError where the trace is shorter than the deadline."""
    needed_s = job.restart_s + job.duration_s(job.work_s)
    if job.deadline_s < needed_s:
        raise UsageError(
            f"the deadline must be at least the work with a start and its checkpoints, {needed_s / S_PER_H:.2f} h,"
            f" but is {job.deadline_s / S_PER_H:.2f} h",
            hint="give a later --deadline, or more GPUs and fewer --work-hours",
        )
    latest_s = trace.end_s - job.deadline_s
    if latest_s < 0:
        raise InputError(
            f"`{trace.path}` must be at least as long as the deadline, {job.deadline_s / S_PER_H:.1f} h, but covers"
            f" {trace.end_s / S_PER_H:.1f} h"
        )
    starts = np.linspace(0.0, latest_s, num_starts) if latest_s else np.zeros(1)
    num_apart = min(len(starts), int(trace.end_s // job.deadline_s))
    outcomes = tuple(
        _outcome(
            strategy,
            [replay(trace, job, strategy, float(start)) for start in starts],
            job,
            {"spot": spot_usd_per_h, "on-demand": on_demand_usd_per_h},
            num_apart,
        )
        for strategy in STRATEGIES
    )
    in_time = [one for one in outcomes if one.met_share >= wanted_met_share and not one.num_unfinished]
    best = min(in_time, key=lambda one: one.cost_usd_mean, default=None)
    return SpotAdvice(
        path=trace.path,
        work_s=job.work_s,
        deadline_s=job.deadline_s,
        checkpoint_interval_s=job.checkpoint_interval_s,
        is_interval_youngs=is_interval_youngs,
        checkpoint_cost_s=job.checkpoint_cost_s,
        restart_s=job.restart_s,
        spot_usd_per_h=spot_usd_per_h,
        on_demand_usd_per_h=on_demand_usd_per_h,
        num_instances=job.num_instances,
        num_apart=num_apart,
        availability=availability(trace, job.num_instances),
        outcomes=outcomes,
        wanted_met_share=wanted_met_share,
        advice=best.strategy if best is not None else None,
        why=_why(best, outcomes, wanted_met_share),
    )


def _outcome(
    strategy: Strategy, runs: Sequence[Replay], job: SpotJob, usd_per_h: dict[str, float], num_apart: int
) -> StrategyResult:
    costs = np.array(
        [
            job.num_instances * (run.spot_s * usd_per_h["spot"] + run.on_demand_s * usd_per_h["on-demand"]) / S_PER_H
            for run in runs
        ]
    )
    finishes = np.array([math.inf if run.finish_s is None else run.finish_s for run in runs])
    met_share = float(np.mean(finishes <= job.deadline_s + 1e-6))
    return StrategyResult(
        strategy=strategy,
        num_starts=len(runs),
        met_share=met_share,
        met_share_interval=wilson(met_share, num_apart),
        num_unfinished=int(np.isinf(finishes).sum()),
        finish_s_quantiles={
            f"p{percent}": found
            if math.isfinite(found := float(np.percentile(finishes, percent, method="higher")))
            else None
            for percent in (10, 50, 90, 99)
        },
        cost_usd_mean=float(costs.mean()),
        cost_usd_quantiles={f"p{percent}": float(np.percentile(costs, percent)) for percent in (10, 50, 90)},
        spot_hours_mean=float(np.mean([run.spot_s for run in runs])) / S_PER_H,
        on_demand_hours_mean=float(np.mean([run.on_demand_s for run in runs])) / S_PER_H,
        losses_mean=float(np.mean([run.num_losses for run in runs])),
        lost_work_s_mean=float(np.mean([run.lost_work_s for run in runs])),
    )


def wilson(share: float, number: int) -> tuple[float, float]:
    """E. B. Wilson's 95 % interval of a share of so many trials (JASA 22, 1927)."""
    middle = (share + Z * Z / (2 * number)) / (1 + Z * Z / number)
    half = Z / (1 + Z * Z / number) * math.sqrt(share * (1 - share) / number + Z * Z / (4 * number * number))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _why(best: StrategyResult | None, outcomes: Sequence[StrategyResult], wanted: float) -> str:
    by_name = {one.strategy: one for one in outcomes}
    always = by_name["on-demand"].cost_usd_mean
    if best is None:
        return f"no strategy finished by the deadline from {wanted:.0%} of the starts"
    if best.strategy == "on-demand":
        return "what spot saves an hour is lost to restarts, repeated work and waiting"
    saved = 1 - best.cost_usd_mean / always if always else 0.0
    spot = by_name["spot"].met_share
    if best.strategy == "spot":
        return f"{saved:.0%} cheaper than on demand, and in time from {best.met_share:.0%} of the starts"
    return f"{saved:.0%} cheaper than on demand; spot alone was in time from {spot:.0%} of the starts"
