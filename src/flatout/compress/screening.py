"""Screen the variants: order them by one start each, and find those that look clearly slower than the untouched model.

In: a backend and variants. Out: a `ScreenedSpeed` for each variant that completed its start. Starts of the untouched
model come first, last and after every fourth variant, so that a drift of the machine shows. One start is too few for a
verdict, which needs two of each arm, so nothing here is proven: the comparisons that follow do not count these starts,
and what looks clearly slower is left without one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import msgspec

from flatout.compress.backend import UNTOUCHED_VARIANT, CompressionBackend, ScreeningStart, Variant
from flatout.records.compression import ScreenedSpeed, VariantResult
from flatout.records.trial import BASELINE, TrialResult
from flatout.records.verdict import Objective
from flatout.verdict.cost import missing, trial_costs
from flatout.verdict.screening import round_order, screen

# A variant looks slower if it takes this many times as long as the untouched model, and as its slowest start, too.
SLOWER_TIMES = 1.2
FEWEST_UNTOUCHED = 2  # starts of the untouched model; fewer do not show how much they differ
FEWEST_VARIANTS = 2  # for one alone the starts are better spent on its comparison

Say = Callable[[str], None]


class ScreeningFound(msgspec.Struct, frozen=True, kw_only=True):
    """What a screening found, by variant."""

    starts: Mapping[str, ScreeningStart]  # that completed
    speeds: Mapping[str, ScreenedSpeed]  # best first
    failed: Mapping[str, ScreeningStart]
    trial_s: float  # that a start took, on average; 0: unknown
    num_starts: int


def screening(
    backend: CompressionBackend,
    variants: Sequence[Variant],
    batch: int | None,
    left_s: Callable[[], float],
    say: Say,
) -> ScreeningFound:
    """Start each variant once, between starts of the untouched model.

    A failure of the untouched model ends the screening, and the comparisons report it. When no time is left, what was
    screened until then counts, and a start that this ended has not failed.
    """
    by_name = {BASELINE: UNTOUCHED_VARIANT, **{variant.name: variant for variant in variants}}
    order = round_order([variant.name for variant in variants])
    trials: list[TrialResult] = []
    starts: dict[str, ScreeningStart] = {}
    failed: dict[str, ScreeningStart] = {}
    num_starts = 0
    for position, name in enumerate(order):
        if left_s() <= 0:
            break
        say(f"screening: start {position + 1} of {len(order)}: {by_name[name].name}")
        start = backend.start(by_name[name], batch, left_s(), len(order) - position)
        num_starts += 1
        if start.trial is not None:
            starts[name] = start
            trials.append(msgspec.structs.replace(start.trial, index=position, arm=name))
            continue
        is_cut = start.is_applied and left_s() <= 0
        if is_cut:
            break
        say(f"screening: {by_name[name].name}: {start.problem}")
        if name == BASELINE:
            break
        failed[name] = start
    speeds = screened_speeds(trials, batch)
    for name, speed in speeds.items():
        slower = ": looks slower, so it is not compared further" if speed.looks_slower else ""
        say(f"screening: {name}: {speed.speedup:.2f}x in one start{slower}")
    times = [trial.took_s for trial in trials if trial.took_s is not None]
    return ScreeningFound(
        starts=starts,
        speeds=speeds,
        failed=failed,
        trial_s=fmean(times) if times else 0.0,
        num_starts=num_starts,
    )


def screened_speeds(trials: Sequence[TrialResult], batch: int | None) -> dict[str, ScreenedSpeed]:
    """Return the speed of each variant that completed its start, best first; {} if no untouched model did."""
    complete = [trial for trial in trials if trial.is_complete]
    has_samples = all(trial.samples_per_step for trial in complete)
    objective: Objective = "s_per_sample" if has_samples else "step_s"
    usable = [trial for trial in complete if missing(trial, objective) is None]
    costs = trial_costs(usable, objective)
    logs = {trial.arm: costs[trial.index].log for trial in usable}
    untouched = [costs[trial.index].log for trial in usable if trial.arm == BASELINE]
    if not untouched:
        return {}
    speeds = {}
    for screened in screen(usable, objective=objective):
        least_slowdown = min(-math.log(screened.speedup), logs[screened.arm] - max(untouched))
        speeds[screened.arm] = ScreenedSpeed(
            batch=batch,
            speedup=screened.speedup,
            num_untouched=len(untouched),
            looks_slower=len(untouched) >= FEWEST_UNTOUCHED and least_slowdown > math.log(SLOWER_TIMES),
        )
    return speeds


def with_screening(result: VariantResult, speed: ScreenedSpeed, start: ScreeningStart) -> VariantResult:
    """Return the result with its speed in one start, and with its memory if no comparison will measure that."""
    result = msgspec.structs.replace(result, screened=speed)
    if not speed.looks_slower:
        return result
    return msgspec.structs.replace(
        result, memory_bytes=start.memory_bytes, memory_kind=start.memory_kind, load_s=start.load_s
    )
