"""Find where the level of a series changes. Outliers, drifts and machines with two states are not changes of level.

In: the values of one measure in their order, and the rate of false alarms that the series may have. Out: a
`Segmentation`. It knows nothing of commits or machines.

1. Positive values are compared by their logarithms, so that levels differ by ratios.
2. In seeded intervals, the best split is judged (`split_tests`). The split with the smallest p-value is kept, intervals
   that contain it are dropped, and so on.
3. Changes are tested again between their neighbours, and the weakest is removed until all pass. A change also needs
   enough results on both sides that they cannot all be outliers.
4. In a series with two states, only changes that both states make count. If a line explains a series better than steps
   do, it drifts, and only steps in addition to the line count (`patterns`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from flatout.records.tracking import Drift, LevelChange, Segmentation, TwoStates
from flatout.track import patterns
from flatout.track.split_tests import (
    CLIP,
    SHOWN,
    Flags,
    Values,
    best_splits,
    neighbour_correlation,
    possible_splits,
    robust_sd,
    seeded_intervals,
    split_log_p,
)

LEAST_RESULTS = 8  # fewer show nothing
LEAST_OF_A_STATE = 2  # results of each of two states on each side of a change
LEAST_RUN = 4  # results on each side of a change
USUAL_OUTLIER_SHARE = 0.05  # of results, assumed where a series shows fewer
# A series is tested at many places that depend on each other. With the limit rate / (TESTS_PER_RESULT n) for a p-value,
# at most a share `rate` of series without a change has one: `benchmarks/track_change_points.py`.
TESTS_PER_RESULT = 0.5
OUTLIER_SD = 4.0  # robust standard deviations from the level
NOISE_FLOOR = 0.1  # of the smallest effect: less noise is not believed, so that a few bytes are not a new level
# Of twice the log likelihood: 95 % of the places of a step. Its distribution is (1 - exp(-x / 2))^2.
LOCATION_DROP = 7.35
# As a share of a drift's whole rise: a curved drift differs from its line by less.
STEP_ON_A_DRIFT = 0.1
_DRIFT_ROUNDS = 3
# The share of the rate of false alarms for steps that show only once a line is subtracted. Subtracting the line also
# removes what neighbours have in common, and so the correlation for which their results would count for fewer.
RATE_ON_A_LINE = 0.01


def segmentation(values: Sequence[float], *, rate: float, min_effect: float) -> Segmentation:
    """Return the changes by at least `min_effect` (0.01 is 1 %), the drift and the states of a series.

    A series without a change is given one with a probability of at most `rate`, even if neighbouring results are
    correlated, unless it counts for few independent ones: then the correlation is too uncertain.
    """
    scale = _Scale(np.asarray(values, dtype=np.float64))
    finder = _Finder(rate=rate, min_effect=min_effect)
    if len(values) < LEAST_RESULTS:
        return Segmentation(level=scale.value(float(np.median(scale.series))))
    states = patterns.two_states(scale.series, finder.floor_sd)
    base = 0.0 if states is None else states.low
    series = scale.series if states is None else scale.series - states.of_each(scale.series)
    slope, changes = finder.with_drift(series)
    if states is not None:
        changes = _of_both_states(changes, states.is_high(scale.series))
    trend: Values = slope * np.arange(len(series), dtype=np.float64)
    straight: Values = series - trend
    line: Values = trend + base
    return Segmentation(
        changes=finder.described(straight, line, changes, scale),
        drift=_drift(straight, line, changes, slope, scale),
        states=_states(states, scale),
        outliers=_outliers(straight, changes, finder.floor_sd),
        correlation=_correlation(straight, changes, finder.floor_sd),
        level=scale.value(_last_level(straight, changes) + float(line[-1])),
    )


class _Scale:
    """The scale on which levels differ by addition: the logarithm of positive values, or shares of their median."""

    def __init__(self, values: Values) -> None:
        self._is_log = bool((values > 0).all())
        self._unit = float(np.median(np.abs(values))) or 1.0
        self.series: Values = np.log(values) if self._is_log else values / self._unit

    def value(self, scaled: float) -> float:
        """Return the measure's value."""
        return math.exp(scaled) if self._is_log else scaled * self._unit


class _ChangeTest(msgspec.Struct, frozen=True, kw_only=True):
    """A change between its neighbours."""

    log_p: float
    is_large: bool  # it exceeds the smallest effect
    is_long: bool  # its shorter side cannot consist of outliers

    def passes(self, limit: float) -> bool:
        return self.log_p <= limit and self.is_large and self.is_long


class _Finder:
    def __init__(self, *, rate: float, min_effect: float) -> None:
        self._rate = rate
        self._least_step = math.log1p(min_effect)
        self.floor_sd = NOISE_FLOOR * min_effect

    def changes(
        self, series: Values, *, least_step: float = 0.0, rate_share: float = 1.0, are_independent: bool = False
    ) -> list[int]:
        """Return the indices of the first results at new levels, in order.

        With `are_independent`, results count in full, even if neighbours are alike.
        """
        limit = math.log(rate_share * self._rate / (TESTS_PER_RESULT * len(series)))
        changes = self._settled(series, self._candidates(series, limit))
        while changes:
            tests = [self._test(series, changes, place, least_step, are_independent) for place in range(len(changes))]
            failing = [place for place, test in enumerate(tests) if not test.passes(limit)]
            if not failing:
                break
            weakest = max(failing, key=lambda place: tests[place].log_p)
            changes = self._settled(series, changes[:weakest] + changes[weakest + 1 :])
        return changes

    def with_drift(self, series: Values) -> tuple[float, list[int]]:
        """Return a slope per result and the changes in addition to it; 0 if steps explain the series better."""
        # Around the steps that describe a drift, and around a line that ignores a step, neighbours are alike: what
        # explains the series is found without regard to that, and tested with it.
        steps = self.changes(series, are_independent=True)
        if not steps:
            return 0.0, []
        best = patterns.criterion(series, steps, 0, self.floor_sd), 0.0
        for first_steps in ([], steps):  # a slope is biased by steps that it ignores, and hidden by too many
            steps_on_line: list[int] = first_steps
            for _ in range(_DRIFT_ROUNDS):
                slope = patterns.slope(series, steps_on_line)
                straight = series - slope * np.arange(len(series))
                steps_on_line = self.changes(straight, least_step=_least_step_on(series, slope), are_independent=True)
                best = min(best, (patterns.criterion(straight, steps_on_line, 1, self.floor_sd), slope))
        slope = best[1]
        changes = self.changes(series)
        if slope:
            straight = series - slope * np.arange(len(series))
            share = 1.0 if changes else RATE_ON_A_LINE
            changes = self.changes(straight, least_step=_least_step_on(series, slope), rate_share=share)
        return slope, changes

    def described(
        self, straight: Values, line: Values, changes: Sequence[int], scale: _Scale
    ) -> tuple[LevelChange, ...]:
        """Return the changes of a series without its line, in the measure's unit."""
        described = []
        for place, index in enumerate(changes):
            start, end = _neighbours(straight, changes, place)
            part = straight[start:end]
            possible = possible_splits(part, LEAST_RUN, self.floor_sd, LOCATION_DROP) + start
            described.append(
                LevelChange(
                    index=index,
                    low=int(possible.min()),
                    high=int(possible.max()),
                    before=scale.value(float(np.median(straight[start:index]) + line[index])),
                    after=scale.value(float(np.median(straight[index:end]) + line[index])),
                    p_value=math.exp(split_log_p(part, index - start, self.floor_sd)),
                )
            )
        return tuple(described)

    def _candidates(self, series: Values, limit: float) -> list[int]:
        """Return the splits of seeded intervals that pass, the clearest first, without intervals that one divides."""
        passing: list[tuple[float, int, int, int]] = []
        for length, starts in seeded_intervals(len(series), 2 * LEAST_RUN):
            windows = np.lib.stride_tricks.sliding_window_view(series, length)[starts]
            log_p, splits = best_splits(windows, LEAST_RUN, self.floor_sd)
            for row in np.flatnonzero(log_p <= limit):
                start = int(starts[row])
                passing.append((float(log_p[row]), start + int(splits[row]), start, start + length))
        passing.sort()
        chosen: list[int] = []
        while passing:
            split = passing[0][1]
            chosen.append(split)
            passing = [interval for interval in passing if not interval[2] < split < interval[3]]
        return sorted(chosen)

    def _settled(self, series: Values, changes: Sequence[int]) -> list[int]:
        """Move each change to the best place between its neighbours."""
        settled = list(changes)
        for place in range(len(settled)):
            start, end = _neighbours(series, settled, place)
            if end - start >= 2 * LEAST_RUN:
                _, splits = best_splits(series[None, start:end], LEAST_RUN, self.floor_sd)
                settled[place] = start + int(splits[0])
        return sorted(set(settled))

    def _test(
        self, series: Values, changes: Sequence[int], place: int, least_step: float, are_independent: bool
    ) -> _ChangeTest:
        start, end = _neighbours(series, changes, place)
        part, split = series[start:end], changes[place] - start
        step = abs(float(np.median(part[split:]) - np.median(part[:split])))
        return _ChangeTest(
            log_p=split_log_p(part, split, self.floor_sd, are_independent=are_independent),
            is_large=step >= max(self._least_step, least_step),
            is_long=_num_at_new_level(part, split) >= self._least_run(len(series), part, split),
        )

    def _least_run(self, num_results: int, part: Values, split: int) -> int:
        """Return how many results in a row are more than outliers.

        If a share q of n results are outliers on one side, some run of k consists of them with a probability of at most
        n q^k; it must be below the rate of false alarms.
        """
        share = max(USUAL_OUTLIER_SHARE, _outlier_share(part, split, self.floor_sd))
        return max(LEAST_RUN, math.ceil(math.log(num_results / self._rate) / -math.log(share)))


def _least_step_on(series: Values, slope: float) -> float:
    """Return the smallest step in addition to a drift."""
    return STEP_ON_A_DRIFT * abs(slope) * len(series)


def _neighbours(series: Values, changes: Sequence[int], place: int) -> tuple[int, int]:
    """Return the change before one, or the start, and the change after it, or the end."""
    edges = [0, *changes, len(series)]
    return edges[place], edges[place + 2]


def _of_both_states(changes: Sequence[int], is_high: Flags) -> list[int]:
    """Return the changes that have results of both states on both sides."""
    kept: list[int] = []
    for place, index in enumerate(changes):
        start = kept[-1] if kept else 0
        end = changes[place + 1] if place + 1 < len(changes) else len(is_high)
        rarest = min(_num_of_rarer(is_high[start:index]), _num_of_rarer(is_high[index:end]))
        if rarest >= LEAST_OF_A_STATE:
            kept.append(index)
    return kept


def _num_of_rarer(is_high: Flags) -> int:
    num_high = int(is_high.sum())
    return min(num_high, len(is_high) - num_high)


def _num_at_new_level(part: Values, split: int) -> int:
    """Return how many results of the shorter side are closer to its level than to that of the longer side."""
    before, after = part[:split], part[split:]
    middle = (np.median(before) + np.median(after)) / 2
    shorter = before if len(before) < len(after) else after
    num_above = int((shorter > middle).sum())
    return max(num_above, len(shorter) - num_above)


def _outlier_share(part: Values, split: int, floor_sd: float) -> float:
    """Return the share of the longer side that is as far from its level as outliers, towards the shorter side."""
    before, after = part[:split], part[split:]
    longer, shorter = (before, after) if len(before) >= len(after) else (after, before)
    center = float(np.median(longer))
    reach = CLIP * max(robust_sd(longer), floor_sd)
    is_far = longer > center + reach if np.median(shorter) > center else longer < center - reach
    return min(float(is_far.mean()), 0.5)


def _outliers(straight: Values, changes: Sequence[int], floor_sd: float) -> tuple[int, ...]:
    rests = patterns.residuals(straight, changes)
    reach = OUTLIER_SD * max(robust_sd(rests), floor_sd)
    return tuple(int(index) for index in np.flatnonzero(np.abs(rests) > reach))


def _correlation(straight: Values, changes: Sequence[int], floor_sd: float) -> float:
    """Return the correlation of neighbouring results, without the levels and with outliers clipped, if it is shown."""
    rests = patterns.residuals(straight, changes)
    reach = CLIP * max(robust_sd(rests), floor_sd)
    clipped: Values = np.clip(rests, -reach, reach)
    return neighbour_correlation(clipped, num_levels=len(changes) + 1, least_errors=SHOWN)


def _last_level(straight: Values, changes: Sequence[int]) -> float:
    return float(np.median(straight[changes[-1] if changes else 0 :]))


def _drift(straight: Values, line: Values, changes: Sequence[int], slope: float, scale: _Scale) -> Drift | None:
    """Return the ends of the line, at the level of the last segment."""
    if not slope:
        return None
    level = _last_level(straight, changes)
    return Drift(start=scale.value(level + float(line[0])), end=scale.value(level + float(line[-1])))


def _states(states: patterns.StateLevels | None, scale: _Scale) -> TwoStates | None:
    if states is None:
        return None
    return TwoStates(
        low=scale.value(states.low),
        high=scale.value(states.high),
        high_share=states.high_share,
        num_switches=states.num_switches,
    )
