"""Reduce each trial to the logarithm of its cost: what a step takes in the long run, with its share of all other work.

In: all complete trials of a tuning. Out: a `TrialCost` for each. The median step is the wrong cost: a loader with four
workers too few makes every fourth step long, and the median hides both this and the gain of a fix. The mean is wrong
too where windows are short: whether 20 steps hold one epoch's end or two is chance. So the cost is that of a regular
step, and of the work that some steps have (an epoch's end, a checkpoint), at the frequency that it has in the job. Both
arms weigh it alike. Work that was seen, but whose frequency is unknown, is not part of the cost.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec
import numpy as np

from flatout.records.trial import BASELINE, SpellKind, TrialResult
from flatout.records.verdict import Objective
from flatout.verdict.periodic_work import find_work
from flatout.verdict.window import Flags, Floats, Window
from flatout.verdict.work import Work

TIMES: tuple[Objective, ...] = ("step_s", "s_per_sample", "s_per_token")
ENERGIES: tuple[Objective, ...] = ("j_per_step", "j_per_sample")
# Windows without the numbers of their steps must hold as many, or how often the work comes in them is partly chance.
MIN_PERIODS_UNNUMBERED = 2
MIN_MATERIAL_SHARE = 0.01  # of the measured time, so that work of unknown frequency is said to be missing
# Weight of what is known from other trials, in steps: it decides only what the trial's own steps leave open.
_PRIOR_STEPS = 1e-3


class WorkCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of work, beyond the regular step, costs in a trial."""

    kinds: tuple[SpellKind, ...]  # several that always come in the same steps: an epoch's end and its evaluation
    extra_s: float | None  # that a step with the work takes beyond a regular step; None: never seen
    period_steps: float | None  # steps from one to the next; None: unknown
    is_absent: bool = False  # the arm no longer has the work
    is_assumed: bool = False  # not measured in this arm's windows: taken from another arm, or from the hooks alone
    num_seen: int = 0  # in the trial's window
    num_measured: int = 0  # of these, the ones that `extra_s` is the mean of; 0: it comes from other trials of the arm

    @property
    def per_step_s(self) -> float | None:
        """Return the share of it in an average step; None if it is unknown."""
        if self.is_absent:
            return 0.0
        if self.extra_s is None or self.period_steps is None:
            return None
        return self.extra_s / self.period_steps


class TrialCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one trial; lower is better. For memory, only `log` is known."""

    log: float  # natural logarithm of the cost
    num_steps: int
    step_s: float | None = None  # an average step: the regular step, and the share of all work of known frequency
    regular_s: float | None = None  # a step without such work
    work: tuple[WorkCost, ...] = ()  # what costs most first
    holds_period: bool = True  # the window is at least as long as each known period
    unknown: tuple[SpellKind, ...] = ()  # work that `log` lacks, or whose cost or frequency is assumed

    @property
    def is_whole(self) -> bool:
        """Whether all work that is known to exist was measured in this arm; else the cost is that of regular steps."""
        return not self.unknown

    @property
    def boundary_s(self) -> float | None:
        """Return the extra seconds of the work that costs most; None without any."""
        return self.work[0].extra_s if self.work else None

    @property
    def period_steps(self) -> float | None:
        """Return the period of the work that costs most; None without any, or if it is unknown."""
        return self.work[0].period_steps if self.work else None


def without_work(cost: TrialCost, kinds: Collection[SpellKind]) -> TrialCost:
    """Return the cost of a step without the work of these kinds, which an arm's trials did not measure."""
    left_out = [work for work in cost.work if not set(kinds).isdisjoint(work.kinds)]
    left_out_s = sum(work.per_step_s or 0.0 for work in left_out)
    if cost.step_s is None or not left_out:
        return cost
    step_s = cost.step_s - left_out_s
    return msgspec.structs.replace(
        cost,
        log=cost.log + math.log(step_s / cost.step_s),
        step_s=step_s,
        work=tuple(work for work in cost.work if work not in left_out),
    )


def trial_costs(trials: Sequence[TrialResult], objective: Objective) -> dict[int, TrialCost]:
    """Return the cost of each trial that has one, by the trial's index.

    The trials may be of any number of arms. Their costs are estimated together, because the periods belong to the job.
    """
    usable = [trial for trial in trials if missing(trial, objective) is None]
    if objective == "peak_memory_bytes":
        return {trial.index: _memory_cost(trial) for trial in usable}
    windows = [Window(trial) for trial in usable]
    fits = _Fits(windows, find_work(windows))
    return {
        trial.index: _time_cost(trial, objective, fits.step(window))
        for trial, window in zip(usable, windows, strict=True)
    }


def regular_steps(trials: Sequence[TrialResult]) -> dict[int, Floats]:
    """Return the seconds of the steps that have no such work, by the trial's index; of all steps if each has some."""
    windows = [Window(trial) for trial in trials]
    works = find_work(windows)
    return {window.index: _without_work(window, works) for window in windows}


def spike_share(trials: Sequence[TrialResult]) -> float:
    """Return the share of the steps that are long without a known cause or an exact period."""
    windows = [Window(trial) for trial in trials]
    spikes = [work for work in find_work(windows) if "unknown" in work.kinds and not _is_exact(work)]
    num_spikes = sum(work.num_seen(window.index) for work in spikes for window in windows)
    return num_spikes / max(sum(window.num_steps for window in windows), 1)


def _is_exact(work: Work) -> bool:
    return any(period is not None and period.is_exact for period in work.period.values())


def _without_work(window: Window, works: Sequence[Work]) -> Floats:
    has_work = steps_with_work(window, works)
    return window.step_s if has_work.all() else window.step_s[~has_work]


def steps_with_work(window: Window, works: Sequence[Work]) -> Flags:
    has_work = np.zeros(window.num_steps, dtype=np.bool_)
    for work in works:
        has_work |= work.is_due[window.index]
    return has_work


def _memory_cost(trial: TrialResult) -> TrialCost:
    return TrialCost(log=math.log(trial.peak_memory_bytes or math.nan), num_steps=len(trial.step_s))


def _time_cost(trial: TrialResult, objective: Objective, step: TrialCost) -> TrialCost:
    """Return the cost of a step as the cost for the objective."""
    amount = step.step_s or math.nan
    if objective in ENERGIES:
        mean_power = (trial.energy_j_per_step or math.nan) / float(np.mean(trial.step_s))
        amount *= mean_power
    if objective in ("s_per_sample", "j_per_sample"):
        amount /= trial.samples_per_step or math.nan
    if objective == "s_per_token":
        amount /= trial.tokens_per_step or math.nan
    return msgspec.structs.replace(step, log=math.log(amount))


class _Fits:
    """The regular step and the extra time of each work, for each arm and then for each trial."""

    def __init__(self, windows: Sequence[Window], works: Sequence[Work]) -> None:
        self._works = list(works)
        self._windows = windows
        self._plain_s = {window.index: float(_without_work(window, works).mean()) for window in windows}
        self._seen_share = [self._share_of_time(work) for work in works]
        self._is_random = np.array([work.is_random for work in self._works], dtype=np.bool_)
        self._arms = sorted({window.arm for window in windows}, key=lambda arm: (arm != BASELINE, arm))
        self._of_arm = {arm: self._fit_arm([w for w in windows if w.arm == arm], arm) for arm in self._arms}

    def step(self, window: Window) -> TrialCost:
        """Return the cost of a step of this trial, with the objective `step_s`."""
        if not self._works:
            step_s = self._plain_s[window.index]
            return TrialCost(log=math.log(step_s), num_steps=window.num_steps, step_s=step_s, regular_s=step_s)
        of_arm = self._of_arm[window.arm]
        is_own = ~np.isnan(of_arm) & ~self._is_random
        extra_s = np.where(is_own, self._fit([window], np.nan_to_num(of_arm)), self._elsewhere_s(window.arm))
        regular_s = self._regular_s(window, extra_s, is_own)
        in_order = [self._work_cost(place, window, extra_s) for place in range(len(self._works))]
        unknown = [cost for place, cost in enumerate(in_order) if self._is_unknown(cost, place, window)]
        costs = sorted(in_order, key=lambda cost: -(cost.per_step_s or 0.0))
        step_s = regular_s + sum(cost.per_step_s or 0.0 for cost in costs)
        return TrialCost(
            log=math.log(step_s),
            num_steps=window.num_steps,
            step_s=step_s,
            regular_s=regular_s,
            work=tuple(costs),
            holds_period=all(cost.period_steps <= window.num_steps for cost in costs if cost.period_steps is not None),
            unknown=tuple(dict.fromkeys(kind for cost in unknown for kind in cost.kinds)),
        )

    def _work_cost(self, place: int, window: Window, extra_s: Floats) -> WorkCost:
        work = self._works[place]
        period = work.period[window.arm]
        is_assumed = bool(np.isnan(self._of_arm[window.arm][place])) and not work.is_random
        return WorkCost(
            kinds=work.kinds,
            extra_s=None if np.isnan(extra_s[place]) else float(extra_s[place]),
            period_steps=None if period is None else period.steps,
            is_absent=window.arm in work.absent_in,
            is_assumed=is_assumed and window.arm not in work.absent_in,
            num_seen=work.num_seen(window.index),
            num_measured=0 if work.is_random else int((work.is_due[window.index] & ~self._first_due(window)).sum()),
        )

    def _is_unknown(self, cost: WorkCost, place: int, window: Window) -> bool:
        """Whether `log` lacks the work, or assumes what it costs or how often it comes."""
        if cost.is_absent:
            return False
        is_material = bool(self._seen_share[place] >= MIN_MATERIAL_SHARE)
        if cost.period_steps is None:
            return is_material
        is_known_only_by_times = not window.is_numbered and not window.has_spells
        is_short = window.num_steps < MIN_PERIODS_UNNUMBERED * cost.period_steps
        is_by_chance = is_known_only_by_times and is_short and is_material and not self._works[place].is_random
        return cost.is_assumed or is_by_chance

    def _share_of_time(self, work: Work) -> float:
        """Return the share of all measured time that the work took, beyond regular steps."""
        extra_s = sum(
            float((window.step_s[work.is_due[window.index]] - self._plain_s[window.index]).sum())
            for window in self._windows
        )
        return extra_s / sum(float(window.step_s.sum()) for window in self._windows)

    def _first_due(self, window: Window) -> Flags:
        """Return the steps with the first occurrence of a work, which may cost more than the later ones."""
        is_first = np.zeros(window.num_steps, dtype=np.bool_)
        for work in self._works:
            is_first |= work.is_first[window.index]
        return is_first

    def _fit_arm(self, windows: Sequence[Window], arm: str) -> Floats:
        """Return the extra seconds of each work in an arm; NaN if none of its steps has the work."""
        prior = np.array([work.hook_s.get(arm, 0.0) for work in self._works])
        extra_s = self._fit(windows, prior)
        is_seen = np.array(
            [any((work.is_due[w.index] & ~self._first_due(w)).any() for w in windows) for work in self._works],
            dtype=np.bool_,
        )
        return np.where(is_seen, extra_s, np.nan)

    def _fit(self, windows: Sequence[Window], prior: Floats) -> Floats:
        """Return the extra seconds of each work by least squares over the steps that have any."""
        if not self._works:
            return prior
        normal = _PRIOR_STEPS * np.eye(len(self._works))
        right = _PRIOR_STEPS * prior
        for window in windows:
            is_used = steps_with_work(window, self._works) & ~self._first_due(window)
            design = np.stack([work.is_due[window.index][is_used] for work in self._works]).astype(np.float64)
            normal += design @ design.T
            right = right + design @ (window.step_s[is_used] - self._plain_s[window.index])
        return np.asarray(np.linalg.solve(normal, right))

    def _elsewhere_s(self, arm: str) -> Floats:
        """Return the extra seconds of each work where the arm's own windows do not show them; NaN if nothing does.

        In this order: what the arm's hooks measured outside its windows, the other arms, and the first occurrence in a
        job. That one often costs more than the later ones, so it must not be compared with those of another arm.
        """
        return np.array([self._work_elsewhere_s(place, arm) for place in range(len(self._works))])

    def _work_elsewhere_s(self, place: int, arm: str) -> float:
        work = self._works[place]
        if work.is_random:
            return self._mean_extra_s(work)
        for other in (arm, *self._arms):
            of_arm = float(self._of_arm[other][place])
            if not math.isnan(of_arm):
                return of_arm
            if work.hook_s.get(other, 0.0) > 0:
                return work.hook_s[other]
        for other in (arm, *self._arms):
            first_s = self._first_extra_s(work, other)
            if first_s is not None:
                return first_s
        return math.nan

    def _first_extra_s(self, work: Work, arm: str) -> float | None:
        """Return what the job's first occurrence took in this arm; None if no window has it."""
        extras = [
            float(window.step_s[work.is_first[window.index]].mean()) - self._plain_s[window.index]
            for window in self._windows
            if window.arm == arm and work.is_first[window.index].any()
        ]
        return float(np.median(extras)) if extras else None

    def _mean_extra_s(self, work: Work) -> float:
        extras = [window.step_s[work.is_due[window.index]] - self._plain_s[window.index] for window in self._windows]
        return float(np.concatenate(extras).mean())

    def _regular_s(self, window: Window, extra_s: Floats, is_own: Flags) -> float:
        """Return the mean step without its works, each place in the period counted once.

        So steps that grow within each epoch weigh alike, wherever in the epoch the window begins. Steps whose work was
        not measured in this arm do not count.
        """
        base_s = window.step_s.copy()
        is_used = ~self._first_due(window)
        for work, seconds, is_measured in zip(self._works, extra_s, is_own, strict=True):
            is_due = work.is_due[window.index]
            if is_measured:
                base_s -= seconds * is_due
            else:
                is_used &= ~is_due
        if not is_used.any():
            return self._plain_s[window.index]
        period = self._longest_period(window)
        if period is None:
            return float(base_s[is_used].mean())
        place = window.number[is_used] % period
        num_at = np.bincount(place, minlength=period)
        sum_at = np.bincount(place, weights=base_s[is_used], minlength=period)
        return float((sum_at[num_at > 0] / num_at[num_at > 0]).mean())

    def _longest_period(self, window: Window) -> int | None:
        """Return the longest exact period that the window spans."""
        periods = [work.period[window.arm] for work in self._works]
        spanned = [
            round(p.steps) for p in periods if p is not None and p.is_exact and p.is_spanned_by(window.num_steps)
        ]
        return max(spanned, default=None)


def missing(trial: TrialResult, objective: Objective) -> str | None:
    """Say why the trial has no cost for this objective; None if it has one."""
    if not trial.is_complete:
        return f"a trial of {trial.arm}: {trial.outcome.replace('_', ' ')}"
    needs: dict[str, float | None] = {}
    if objective == "peak_memory_bytes":
        needs["peak memory"] = trial.peak_memory_bytes
    if objective in ("j_per_step", "j_per_sample"):
        needs["energy"] = trial.energy_j_per_step
    if objective in ("s_per_sample", "j_per_sample"):
        needs["number of samples"] = trial.samples_per_step
    if objective == "s_per_token":
        needs["number of tokens"] = trial.tokens_per_step
    absent = [name for name, value in needs.items() if not value]
    if absent:
        return f"a trial of {trial.arm} has no {absent[0]}"
    return None
