"""How far the cost of a trial's window is from the job's true cost, on simulated jobs with periodic work.

    python benchmarks/window_costs.py [--tunings 200] [--out results.json]

A regular step takes 60 ms (steps differ by 5 %, runs by 3 %); an epoch's end takes 2.4 s (10 %), the first one of a job
half as long again; a checkpoint takes 0.8 s, and a garbage collection, which comes by a count of objects, 0.1 s. Each
tuning has five baselines and three candidates; how long the warm-up takes differs from trial to trial. Every tuning is
given to `trial_costs` three times: as an old journal has it (times only), with numbered steps, and with what the hooks
see. `plain` is the mean of the window's steps, and `today` is the rule before: the same without rare long steps. The
bias is that of the log cost over all trials; `ratio` is the error of the log of the arms' ratio. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.trial import BASELINE, SpellKind, StepSpell, TrialResult
from flatout.verdict.cost import TrialCost, trial_costs

Floats = NDArray[np.float64]

PERIODS = (7, 15, 40, 100, 300)
WINDOWS = (12, 20, 30, 60, 120, 200)
WAYS = ("times only", "numbered", "hooks")
NUM_BASELINES, NUM_CANDIDATES = 5, 3
SPIKE_FACTOR, MAX_SPIKE_SHARE = 1.5, 0.05  # of the rule before
WARM_UP = (11, 40)  # steps


class PlantedWork(msgspec.Struct, frozen=True, kw_only=True):
    """Work that returns every `period` steps; by chance around that where `jitter` is not 0."""

    kind: SpellKind
    period: float
    seconds: float  # in total, of a step with it
    sd: float = 0.1
    first: float = 1.0  # factor of the first occurrence in the job
    jitter: float = 0.0  # steps


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a step of one arm takes."""

    regular_s: float = 0.06
    step_sd: float = 0.05
    run_sd: float = 0.03
    works: tuple[PlantedWork, ...] = ()
    growth: float = 0.0  # how much a step grows within an epoch, as a share

    @property
    def true_step_s(self) -> float:
        extra = sum((work.seconds - self.regular_s) / work.period for work in self.works)
        return self.regular_s * (1 + self.growth / 2) + extra


def epoch(period: int, seconds: float = 2.4) -> PlantedWork:
    return PlantedWork(kind="epoch_end", period=period, seconds=seconds, first=1.5)


CHECKPOINT = PlantedWork(kind="checkpoint", period=20, seconds=0.8)
COLLECTION = PlantedWork(kind="collection", period=13.4, seconds=0.16, jitter=0.6)


def occurrences(rng: np.random.Generator, work: PlantedWork, last: int) -> list[int]:
    """Return the numbers of the steps that have the work."""
    if not work.jitter:
        return list(range(int(work.period), last, int(work.period)))
    gaps = rng.normal(work.period, work.jitter, int(last / work.period) + 10)
    at = rng.uniform(0, work.period) + np.cumsum(gaps)
    return [int(number) for number in at if number < last]


def simulate(rng: np.random.Generator, job: Job, index: int, arm: str, num_steps: int) -> TrialResult:
    """Return a trial with all that the recorder knows of it."""
    first = int(rng.integers(*WARM_UP))
    number = np.arange(first, first + num_steps)
    step_s = job.regular_s * np.exp(rng.normal(0, job.step_sd, num_steps) - job.step_sd**2 / 2)
    if job.growth and job.works:
        step_s *= 1 + job.growth * (number % int(job.works[0].period)) / job.works[0].period
    spells = []
    for work in job.works:
        places = occurrences(rng, work, first + num_steps)
        for place in places:
            seconds = (work.seconds - job.regular_s) * math.exp(rng.normal(0, work.sd) - work.sd**2 / 2)
            seconds *= work.first if place == places[0] else 1.0
            spells.append(StepSpell(place, work.kind, seconds))
            if place >= first:
                step_s[place - first] += seconds
    step_s *= math.exp(rng.normal(0, job.run_sd) - job.run_sd**2 / 2)
    return TrialResult(
        index=index,
        arm=arm,
        outcome="completed",
        step_s=tuple(step_s.tolist()),
        first_step=first,
        spells=tuple(sorted(spells, key=lambda spell: spell.step)),
        steps_per_epoch=int(job.works[0].period) if job.works else None,
    )


def tuning(rng: np.random.Generator, jobs: tuple[Job, Job], num_steps: int) -> list[TrialResult]:
    trials = [simulate(rng, jobs[0], index, BASELINE, num_steps) for index in range(NUM_BASELINES)]
    trials += [simulate(rng, jobs[1], NUM_BASELINES + index, "candidate", num_steps) for index in range(NUM_CANDIDATES)]
    return trials


def as_known(trials: Sequence[TrialResult], way: str) -> list[TrialResult]:
    """Return the trials with what a journal of this kind has."""
    if way == "hooks":
        return list(trials)
    if way == "numbered":
        return [msgspec.structs.replace(trial, spells=None, steps_per_epoch=None) for trial in trials]
    return [msgspec.structs.replace(trial, spells=None, steps_per_epoch=None, first_step=None) for trial in trials]


def today(trials: Sequence[TrialResult]) -> list[float]:
    """Return the costs by the rule before: means without steps above 1.5 medians, if these are rare in each arm."""
    windows = [np.asarray(trial.step_s) for trial in trials]
    is_spike = [steps > SPIKE_FACTOR * np.median(steps) for steps in windows]
    arms = (slice(None, NUM_BASELINES), slice(NUM_BASELINES, None))
    drops = all(np.concatenate(is_spike[arm]).mean() <= MAX_SPIKE_SHARE for arm in arms)
    kept = [steps[~spikes] if drops else steps for steps, spikes in zip(windows, is_spike, strict=True)]
    return [math.log(float(steps.mean())) for steps in kept]


class Errors:
    """The errors of the log costs of one way, over tunings."""

    def __init__(self, jobs: tuple[Job, Job]) -> None:
        before, after = (math.log(job.true_step_s) for job in jobs)
        self._truth = np.array([before] * NUM_BASELINES + [after] * NUM_CANDIDATES)
        self._rows: list[Floats] = []
        self._whole: list[bool] = []

    def add(self, logs: Sequence[float], *, is_whole: bool = True) -> None:
        self._rows.append(np.asarray(logs) - self._truth)
        self._whole.append(is_whole)

    def summary(self) -> dict[str, float]:
        rows = np.array(self._rows)
        ratio = rows[:, :NUM_BASELINES].mean(axis=1) - rows[:, NUM_BASELINES:].mean(axis=1)
        return {
            "bias": round(float(rows.mean()), 4),
            "sd_of_a_trial": round(float(rows.std(axis=1).mean()), 4),
            "ratio_bias": round(float(ratio.mean()), 4),
            "ratio_sd": round(float(ratio.std()), 4),
            "whole": round(float(np.mean(self._whole)), 3),
        }


def cell(jobs: tuple[Job, Job], num_steps: int, num_tunings: int, seed: int) -> dict[str, Any]:
    """Return the errors of all ways for one kind of tuning."""
    rng = np.random.default_rng(seed)
    errors = {way: Errors(jobs) for way in ("plain", "today", *WAYS)}
    seconds = 0.0
    for _ in range(num_tunings):
        trials = tuning(rng, jobs, num_steps)
        errors["plain"].add([math.log(float(np.mean(trial.step_s))) for trial in trials])
        errors["today"].add(today(trials))
        for way in WAYS:
            known = as_known(trials, way)
            began = time.process_time()
            costs: dict[int, TrialCost] = trial_costs(known, "step_s")
            seconds += time.process_time() - began
            errors[way].add(
                [costs[trial.index].log for trial in known], is_whole=all(cost.is_whole for cost in costs.values())
            )
    result: dict[str, Any] = {way: found.summary() for way, found in errors.items()}
    return result | {"ms_per_call": round(1000 * seconds / num_tunings / len(WAYS), 2)}


def scenarios() -> dict[str, Callable[[int], tuple[Job, Job]]]:
    """Return the jobs of both arms by the period of the epoch."""
    plain = Job()

    def equal(period: int) -> tuple[Job, Job]:
        job = msgspec.structs.replace(plain, works=(epoch(period),))
        return job, job

    def other_boundary(period: int) -> tuple[Job, Job]:
        before = msgspec.structs.replace(plain, works=(epoch(period),))
        return before, msgspec.structs.replace(plain, regular_s=0.03, works=(epoch(period, 1.2),))

    def with_checkpoint(period: int) -> tuple[Job, Job]:
        job = msgspec.structs.replace(plain, works=(epoch(period), CHECKPOINT))
        return job, job

    def with_collections(period: int) -> tuple[Job, Job]:
        before = msgspec.structs.replace(plain, works=(epoch(period), COLLECTION))
        return before, msgspec.structs.replace(plain, works=(epoch(period),))

    def growing(period: int) -> tuple[Job, Job]:
        job = msgspec.structs.replace(plain, works=(epoch(period),), growth=0.5)
        return job, job

    return {
        "equal arms": equal,
        "boundary halved, step halved": other_boundary,
        "checkpoint each 20": with_checkpoint,
        "collections gone": with_collections,
        "steps grow in an epoch": growing,
    }


def second_row(num_tunings: int, num_steps: int = 20, seed: int = 19) -> dict[str, Any]:
    """Return the speedups found for 15 steps an epoch: 176 to 63 ms a step, and 2.6 to 2.2 s a boundary."""
    jobs = tuple(
        Job(regular_s=regular, step_sd=0.08, works=(PlantedWork(kind="epoch_end", period=15, seconds=end, first=1.2),))
        for regular, end in ((0.176, 2.6), (0.063, 2.2))
    )
    rng = np.random.default_rng(seed)
    found: dict[str, list[float]] = {way: [] for way in ("plain", *WAYS)}
    warm_ups = ((11, 12, 13, 11, 12), (17, 19, 21))  # baselines hold two boundaries, candidates one
    for _ in range(num_tunings):
        trials = []
        for job, arm, firsts in zip(jobs, (BASELINE, "candidate"), warm_ups, strict=True):
            for first in firsts:
                trial = simulate(rng, job, len(trials), arm, first - WARM_UP[0] + WARM_UP[1] + num_steps)
                trials.append(_cut(trial, first, num_steps))
        found["plain"].append(_ratio([math.log(float(np.mean(trial.step_s))) for trial in trials]))
        for way in WAYS:
            costs = trial_costs(as_known(trials, way), "step_s")
            found[way].append(_ratio([costs[trial.index].log for trial in trials]))
    quantiles = {
        way: [round(float(q), 3) for q in np.quantile(ratios, (0.05, 0.5, 0.95))] for way, ratios in found.items()
    }
    return {"truth": round(jobs[0].true_step_s / jobs[1].true_step_s, 3), "num_steps": num_steps, **quantiles}


def _cut(trial: TrialResult, first: int, num_steps: int) -> TrialResult:
    """Return the trial as one whose window begins at this step."""
    # The simulated window may begin later: its steps are moved, so that boundaries are where their numbers say.
    assert trial.first_step is not None and trial.spells is not None
    phase = (first - trial.first_step) % 15
    steps = trial.step_s[phase : phase + num_steps]
    moved = trial.first_step + phase - first
    spells = tuple(
        StepSpell(spell.step - moved, spell.kind, spell.seconds)
        for spell in trial.spells
        if 0 < spell.step - moved < first + num_steps
    )
    return msgspec.structs.replace(trial, first_step=first, step_s=steps, spells=spells)


def _ratio(logs: Sequence[float]) -> float:
    return math.exp(float(np.mean(logs[:NUM_BASELINES]) - np.mean(logs[NUM_BASELINES:])))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    cells = []
    for name, jobs in scenarios().items():
        for period in PERIODS:
            for num_steps in WINDOWS:
                result = cell(jobs(period), num_steps, options.tunings, seed=period * 1000 + num_steps)
                cells.append({"scenario": name, "period": period, "window": num_steps, **result})
                biases = "  ".join(
                    f"{way} {result[way]['bias']:+.3f}/{result[way]['ratio_bias']:+.3f} ({result[way]['whole']:.0%})"
                    for way in ("plain", "today", *WAYS)
                )
                print(f"{name:30s} {period:4d} {num_steps:4d}  {biases}  {result['ms_per_call']} ms", flush=True)
    replay = second_row(options.tunings)
    print(json.dumps(replay))
    report = {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tunings": options.tunings,
        "cells": cells,
        "second_row": replay,
    }
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
