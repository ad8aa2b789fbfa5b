"""Compute from a spot trace a job's cost on spot, on demand and on a mix of both, and whether it met its deadline.

The job needs `num_instances` at once and works on them for `work_s`. After every interval of work it saves a
checkpoint, which pauses it for the checkpoint's cost, and each start takes `restart_s` without work. When instances are
taken away, it falls back to its last checkpoint. Instances are paid for while they are held. On-demand instances are
always available.

- spot: the job runs on spot instances whenever there are enough, and waits otherwise.
- on-demand: the job runs on on-demand instances from start to end.
- mix: Uniform Progress (Wu et al., "Can't Be Late", NSDI '24): spot whenever there are enough; without,
  on demand only while the job is behind an even pace to the deadline, and back only once it is ahead of the pace by two
  changeovers; when no more time is left than on demand needs, on demand to the end. It decides when capacity changes
  and every `DECIDE_EVERY_S`, knows nothing of the future, and has no parameter. The paper's
  last rule is for a waiting job; here it also makes a job leave spot, with unsaved work counted as undone.

Each strategy is replayed from many starts, evenly spaced over the trace.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.errors import InputError, UsageError
from flatout.records.spot import STRATEGIES, Availability, SpotAdvice, SpotTrace, Strategy, StrategyResult

NUM_STARTS = 200
DECIDE_EVERY_S = 300.0
WANTED_MET_SHARE = 0.95
S_PER_H = 3600.0
Z = 1.959964  # of the normal distribution, 95 %


class SpotJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job to replay in a trace."""

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
        """Return the time to do the work from a checkpoint if nothing is lost; no checkpoint is saved at its end."""
        num_checkpoints = max(math.ceil(work_s / self.checkpoint_interval_s) - 1, 0)
        return work_s + num_checkpoints * self.checkpoint_cost_s

    def done_s(self, running_s: float) -> float:
        """Return the work done in that time from a checkpoint."""
        cycles, rest = divmod(max(running_s, 0.0), self.cycle_s)
        return cycles * self.checkpoint_interval_s + min(rest, self.checkpoint_interval_s)

    def saved_s(self, running_s: float) -> float:
        """Return the work done in that time that is saved in a checkpoint."""
        return max(running_s, 0.0) // self.cycle_s * self.checkpoint_interval_s


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one start of the job with one strategy."""

    finish_s: float | None  # since the start; None: did not finish within the trace
    spot_s: float
    on_demand_s: float
    num_losses: int
    lost_work_s: float


class _Capacity:
    """A step function of whether there are enough instances, with equal steps joined."""

    def __init__(self, trace: SpotTrace, num_instances: int) -> None:
        self.end_s = trace.end_s
        self.times_s: list[float] = []
        self.is_enough: list[bool] = []
        for time_s, count in zip(trace.times_s, trace.counts, strict=True):
            if not self.is_enough or self.is_enough[-1] != (count >= num_instances):
                self.times_s.append(time_s)
                self.is_enough.append(count >= num_instances)

    def at(self, time_s: float) -> tuple[bool, float]:
        """Return whether there are enough instances, and when that changes."""
        index = bisect_right(self.times_s, time_s) - 1
        is_last = index + 1 == len(self.times_s)
        return self.is_enough[index], self.end_s if is_last else self.times_s[index + 1]


def availability(trace: SpotTrace, num_instances: int) -> Availability:
    """Summarize when the trace has `num_instances` at once."""
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
    """Replay the strategy from this time of the trace."""
    return _Replayed(_Capacity(trace, job.num_instances), job, strategy, start_s).run()


def youngs_interval_s(checkpoint_cost_s: float, mean_time_to_loss_s: float) -> float:
    """Return sqrt(2 C M): J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 1974."""
    return math.sqrt(2 * checkpoint_cost_s * mean_time_to_loss_s)


class _Replayed:
    """The state of one replay. `running_s` counts from the end of the restart; it is negative while the job starts."""

    def __init__(self, capacity: _Capacity, job: SpotJob, strategy: Strategy, start_s: float) -> None:
        self.capacity, self.job, self.strategy = capacity, job, strategy
        self.start_s = self.now_s = start_s
        self.on: Strategy | None = None  # "spot" or "on-demand"
        self.base_s = 0.0  # work in the checkpoint from which the job runs
        self.running_s = 0.0
        self.held_s = {"spot": 0.0, "on-demand": 0.0}
        self.is_final = False  # on demand until the end
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
                return self._result(self.now_s - self.start_s)
        if self.on == "on-demand":  # on demand continues after the end of the trace
            self._advance(math.inf)
            return self._result(self.now_s - self.start_s)
        return self._result(None)

    def _result(self, finish_s: float | None) -> Replay:
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
        """Whether no more time is left than on demand needs from here. On spot, unsaved work can be lost."""
        job = self.job
        safe_s = job.saved_s(self.running_s) if self.on == "spot" else job.done_s(self.running_s)
        saved_s = self.base_s + safe_s
        left_s = self.start_s + job.deadline_s - self.now_s
        needed_s = job.checkpoint_cost_s + job.restart_s + job.duration_s(job.work_s - saved_s)
        return left_s - DECIDE_EVERY_S < needed_s

    def _pace_s(self, time_s: float) -> float:
        """Return the work that an even pace would have done by then."""
        return self.job.work_s * min((time_s - self.start_s) / self.job.deadline_s, 1.0)

    def _wanted(self, is_enough: bool) -> Strategy | None:
        """Return the kind of instances to run on now; None: wait."""
        if self.strategy == "on-demand":
            return "on-demand"
        if self.strategy == "mix":
            return self._uniform_progress(is_enough)
        return "spot" if is_enough else None

    def _uniform_progress(self, is_enough: bool) -> Strategy | None:
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
        is_behind = self._work_s() < self._pace_s(self.now_s)
        return "on-demand" if is_behind else None

    def _move(self, to: Strategy | None) -> None:
        """Change instances by choice: the work is saved first, at a checkpoint's cost."""
        if to == self.on:
            return
        is_running_on = self.on is not None and to is not None
        saving_s = self.job.checkpoint_cost_s if is_running_on else 0.0
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
        """Advance to that time, or to the job's end; return whether the job has ended."""
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
    """Replay all strategies. Prices are per instance. Raises InputError if the trace is shorter than the deadline."""
    needed_s = job.restart_s + job.duration_s(job.work_s)
    if job.deadline_s < needed_s:
        raise UsageError(
            f"the deadline must be at least the work with a start and its checkpoints, {needed_s / S_PER_H:.2f} h,"
            f" but is {job.deadline_s / S_PER_H:.2f} h",
            hint="pass a later --deadline, or more GPUs and fewer --work-hours",
        )
    latest_s = trace.end_s - job.deadline_s
    if latest_s < 0:
        raise InputError(
            f"`{trace.path}` must be at least as long as the deadline, {job.deadline_s / S_PER_H:.1f} h, but covers"
            f" {trace.end_s / S_PER_H:.1f} h"
        )
    starts = np.linspace(0.0, latest_s, num_starts) if latest_s else np.zeros(1)
    num_apart = min(len(starts), int(trace.end_s // job.deadline_s))
    usd_per_h: dict[str, float] = {"spot": spot_usd_per_h, "on-demand": on_demand_usd_per_h}
    results = []
    for strategy in STRATEGIES:
        runs = [replay(trace, job, strategy, float(start)) for start in starts]
        results.append(_strategy_result(strategy, runs, job, usd_per_h, num_apart))
    in_time = [result for result in results if result.met_share >= wanted_met_share and not result.num_unfinished]
    best = min(in_time, key=lambda result: result.cost_usd_mean, default=None)
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
        outcomes=tuple(results),
        wanted_met_share=wanted_met_share,
        advice=best.strategy if best is not None else None,
        why=_why(best, results, wanted_met_share),
    )


def _strategy_result(
    strategy: Strategy, runs: Sequence[Replay], job: SpotJob, usd_per_h: dict[str, float], num_apart: int
) -> StrategyResult:
    """Summarize one strategy over all starts."""
    costs = np.array([_cost_usd(run, job, usd_per_h) for run in runs])
    finishes = np.array([math.inf if run.finish_s is None else run.finish_s for run in runs])
    met_share = float(np.mean(finishes <= job.deadline_s + 1e-6))
    return StrategyResult(
        strategy=strategy,
        num_starts=len(runs),
        met_share=met_share,
        met_share_interval=wilson(met_share, num_apart),
        num_unfinished=int(np.isinf(finishes).sum()),
        finish_s_quantiles={f"p{percent}": _finish_quantile(finishes, percent) for percent in (10, 50, 90, 99)},
        cost_usd_mean=float(costs.mean()),
        cost_usd_quantiles={f"p{percent}": float(np.percentile(costs, percent)) for percent in (10, 50, 90)},
        spot_hours_mean=float(np.mean([run.spot_s for run in runs])) / S_PER_H,
        on_demand_hours_mean=float(np.mean([run.on_demand_s for run in runs])) / S_PER_H,
        losses_mean=float(np.mean([run.num_losses for run in runs])),
        lost_work_s_mean=float(np.mean([run.lost_work_s for run in runs])),
    )


def _cost_usd(run: Replay, job: SpotJob, usd_per_h: dict[str, float]) -> float:
    return job.num_instances * (run.spot_s * usd_per_h["spot"] + run.on_demand_s * usd_per_h["on-demand"]) / S_PER_H


def _finish_quantile(finishes: NDArray[np.float64], percent: int) -> float | None:
    """Return a percentile of the times to finish; None if too few finished within the trace."""
    finish_s = float(np.percentile(finishes, percent, method="higher"))
    return finish_s if math.isfinite(finish_s) else None


def wilson(share: float, number: int) -> tuple[float, float]:
    """Return E. B. Wilson's 95 % interval for a share of `number` trials (JASA 22, 1927)."""
    scale = 1 + Z * Z / number
    middle = (share + Z * Z / (2 * number)) / scale
    variance = share * (1 - share) / number + Z * Z / (4 * number * number)
    half = Z / scale * math.sqrt(variance)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _why(best: StrategyResult | None, results: Sequence[StrategyResult], wanted_share: float) -> str:
    if best is None:
        return f"no strategy finished by the deadline from {wanted_share:.0%} of the starts"
    if best.strategy == "on-demand":
        return "restarts, repeated work and waiting cost more than spot saves"
    by_name = {result.strategy: result for result in results}
    on_demand_usd = by_name["on-demand"].cost_usd_mean
    saved = 1 - best.cost_usd_mean / on_demand_usd if on_demand_usd else 0.0
    if best.strategy == "spot":
        return f"{saved:.0%} cheaper than on demand, and in time from {best.met_share:.0%} of the starts"
    spot_share = by_name["spot"].met_share
    return f"{saved:.0%} cheaper than on demand; spot alone was in time from {spot_share:.0%} of the starts"
