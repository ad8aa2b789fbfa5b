"""Lower the power limit of a job's GPUs to the knee of its curve while it runs, and restore it at its end.

In: the heartbeats of the ranks and the energy counters of their GPUs. Out: limits that are set through `PowerLimits`,
and reports. In a dry run, nothing is set: one report says what would be tried.

Limits fall in steps of a tenth of the first one. At each, the time and the energy of a step are measured over the same
number of steps; the knee is the limit with the least product of the two. The first limit that is worse ends the search.
A gain of less than `LEAST_GAIN` in that product does not pay: the first limit comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Literal

import msgspec

from flatout.keep.heartbeats import BLOCK_STEPS, HeartbeatSample
from flatout.probe.power_limits import PowerLimitError, PowerLimits
from flatout.records.adaptation import PowerAdaptation

LEAST_GAIN = 0.02  # of energy x time, from which a lower limit is kept
STEP_SHARE = 0.1  # of the first limit, by which each further limit is lower
MEASURED_STEPS = 5 * BLOCK_STEPS
SETTLING_STEPS = BLOCK_STEPS  # after a limit was set: clocks and temperatures follow it


class _Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A step at one limit."""

    limit_w: float
    step_s: float
    step_j: float

    @property
    def product(self) -> float:
        return self.step_s * self.step_j


class PowerAdapter:
    """Follows one job on one host. All its GPUs get the same limit."""

    def __init__(
        self,
        mode: Literal["dry-run", "on"],
        limits: PowerLimits,
        *,
        report: Callable[[PowerAdaptation], object],
    ) -> None:
        self._mode = mode
        self._limits = limits
        self._report = report
        self._gpus: tuple[int, ...] = ()
        self._first_w = self._least_w = self._limit_w = 0.0
        self._measured: list[_Measured] = []
        self._window: tuple[int, float, float] | None = None  # steps, energy and time at its beginning
        self._from_step = SETTLING_STEPS
        self._names: tuple[str, ...] = ()
        self._is_over = False

    def look(self, ranks: Sequence[HeartbeatSample]) -> None:
        """Look at the ranks: measure, and set the next limit once a limit has been measured."""
        if self._is_over or not ranks:
            return
        try:
            self._look(ranks)
        except PowerLimitError as error:
            self._is_over = True
            self._limits.restore()
            if self._measured:
                self._tell("stopped", self._measured[0], problem=str(error))

    def close(self) -> None:
        """Restore the limits that the GPUs had before."""
        self._limits.restore()

    def _look(self, ranks: Sequence[HeartbeatSample]) -> None:
        names = tuple(rank.name for rank in ranks)
        if names != self._names:  # another attempt: its steps count from zero
            self._names, self._window, self._from_step = names, None, SETTLING_STEPS
            self._find_gpus(ranks)
        num_steps = min(rank.num_steps for rank in ranks)
        if not self._gpus or num_steps < self._from_step:
            return
        energy_j = self._energy_j()
        ends = [rank.last_step_end_s for rank in ranks if rank.last_step_end_s is not None]
        if energy_j is None or not ends:
            return
        if self._window is None:
            self._window = num_steps, energy_j, max(ends)
            return
        steps = num_steps - self._window[0]
        if steps < MEASURED_STEPS:
            return
        measured = _Measured(
            limit_w=self._limit_w,
            step_s=(max(ends) - self._window[2]) / steps,
            step_j=(energy_j - self._window[1]) / steps,
        )
        self._window, self._from_step = None, num_steps + SETTLING_STEPS
        self._measured.append(measured)
        self._go_on()

    def _find_gpus(self, ranks: Sequence[HeartbeatSample]) -> None:
        used = {rank.gpu for rank in ranks if rank.gpu is not None}
        limits = [limit for limit in self._limits.read() if limit.uuid in used]
        self._gpus = tuple(limit.index for limit in limits)
        if limits and not self._first_w:
            self._first_w = self._limit_w = median(limit.limit_w for limit in limits)
            self._least_w = max(limit.least_w for limit in limits)

    def _energy_j(self) -> float | None:
        readings = [self._limits.energy_j(index) for index in self._gpus]
        known = [reading for reading in readings if reading is not None]
        return sum(known) if len(known) == len(readings) else None

    def _go_on(self) -> None:
        """Set the next lower limit, or the best one if the last one was worse or nothing is lower."""
        last = self._measured[-1]
        next_w = self._limit_w - STEP_SHARE * self._first_w
        is_better = len(self._measured) == 1 or last.product < self._measured[-2].product
        if len(self._measured) > 1:
            self._tell("tried", last)
        if is_better and next_w >= self._least_w:
            if self._mode == "dry-run":
                self._is_over = True
                self._tell("would_try", msgspec.structs.replace(last, limit_w=next_w), is_measured=False)
                return
            self._set(next_w)
            return
        self._is_over = True
        first, best = self._measured[0], min(self._measured, key=lambda each: each.product)
        pays = best.product <= (1 - LEAST_GAIN) * first.product
        if len(self._measured) > 1:
            self._set(best.limit_w if pays else first.limit_w)
            self._tell("kept" if pays else "undone", best if pays else last)

    def _set(self, limit_w: float) -> None:
        for index in self._gpus:
            self._limits.set(index, limit_w)
        self._limit_w = limit_w

    def _tell(
        self,
        outcome: Literal["would_try", "tried", "kept", "undone", "stopped"],
        at: _Measured,
        *,
        is_measured: bool = True,
        problem: str = "",
    ) -> None:
        first = self._measured[0]
        self._report(
            PowerAdaptation(
                outcome=outcome,
                gpus=self._gpus,
                before_w=first.limit_w,
                limit_w=at.limit_w,
                before_s=first.step_s,
                before_j=first.step_j,
                after_s=at.step_s if is_measured else None,
                after_j=at.step_j if is_measured else None,
                problem=problem,
            )
        )
