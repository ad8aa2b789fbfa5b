"""How much time the lengths of trials cost, beside an oracle that knows the job's noise and the effect.

    python benchmarks/trial_length.py [--jobs 150] [--windows 100] [--seed 1] [--out results.json]

A simulated job has a cost of its start, a step time, noise between steps (perhaps correlated), noise between runs, and
perhaps a boundary every so many steps that takes as long as ten of them. Each trial's steps go one by one through
`inside/phases/counted_steps.py`, which the job itself uses, under the rule of `tune/trial_length.py`; the policy's
baselines, from which it knows the noise between runs, are simulated too. The error of each trial's cost gives the
number of trials after which an effect is three standard errors from zero, at least three of each arm, and so the time
to a verdict.

The oracle tries every fixed number of counted steps and takes the one with the least time to the verdict. The rule of
version 0.9 counts 30 steps after a warm-up of 11 or more. Ratios are times over the oracle's time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.inside.phases.counted_steps import CountedSteps
from flatout.inside.phases.warmup import WarmupDetector
from flatout.inside.recording.step_detector import StepSource
from flatout.inside.settings import StopRule
from flatout.tune.trial_length import KnownTimes, trial_length

Floats = NDArray[np.float64]

DEVIATIONS = 3.0  # standard errors between an effect and zero, for a verdict
MIN_TRIALS = 3  # of each arm
BOUNDARY_STEPS = 10.0  # what a boundary takes, in steps
BUDGET_S = 600.0
NUM_FLOOR_TRIALS = 3
OLD_STEPS, OLD_WARMUP, OLD_WARMUP_S, OLD_WARMUP_WITHOUT_TIME = 30, 11, 1.0, 50
MOST_OF_ORACLE_S = 300.0

START_S, STEP_S = (5.0, 20.0, 70.0), (0.005, 0.05, 0.3, 1.0, 2.0)
STEP_SD, CORRELATION, RUN_SD = (0.02, 0.1, 0.3), (0.0, 0.7), (0.005, 0.02, 0.05)
PERIOD, EFFECT = (None, None, 15, 40), (0.03, 0.1, 0.3, 1.0)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    start_s: float
    step_s: float
    step_sd: float
    correlation: float
    run_sd: float
    period: int | None
    effect: float

    @property
    def cost_s(self) -> float:
        """Return the true mean step."""
        boundary = 0.0 if self.period is None else BOUNDARY_STEPS / self.period
        return self.step_s * (1 + boundary)

    def steps(self, rng: np.random.Generator, num_steps: int) -> Floats:
        """Return the steps of a run, without its own offset, from a random place in the period."""
        noise = rng.normal(0, self.step_sd, num_steps)
        if self.correlation:
            for place in range(1, num_steps):
                fresh = math.sqrt(1 - self.correlation**2) * noise[place]
                noise[place] = self.correlation * noise[place - 1] + fresh
        times = self.step_s * np.exp(noise - self.step_sd**2 / 2)
        if self.period is not None:
            times[int(rng.integers(self.period)) :: self.period] += BOUNDARY_STEPS * self.step_s
        return times

    def cost_of(self, times: Floats) -> float:
        """Return the mean step that a window shows, with a boundary at its true frequency if one is in the window."""
        is_boundary = times > 0.6 * BOUNDARY_STEPS * self.step_s
        if self.period is None or not is_boundary.any() or is_boundary.all():
            return float(times.mean())
        regular_s = float(times[~is_boundary].mean())
        return regular_s + (float(times[is_boundary].mean()) - regular_s) / self.period


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """A way of measuring: how long a trial of it measures, and how far its cost is from the truth."""

    measured_s: float
    num_steps: float
    error: float  # root mean square of the relative error
    num_trials: int  # of each arm, to a verdict
    total_s: float  # to a verdict


def outcome(job: Job, windows: list[Floats], warmup_s: float) -> Outcome:
    measured_s = float(np.mean([times.sum() for times in windows]))
    errors = [job.cost_of(times) / job.cost_s - 1 for times in windows]
    error = math.sqrt(float(np.mean(np.square(errors))))
    variance = job.run_sd**2 + error**2
    needed = 2 * DEVIATIONS**2 * variance / math.log1p(job.effect) ** 2
    num_trials = max(math.ceil(needed), MIN_TRIALS)
    return Outcome(
        measured_s=measured_s,
        num_steps=float(np.mean([len(times) for times in windows])),
        error=error,
        num_trials=num_trials,
        total_s=2 * num_trials * (job.start_s + warmup_s + measured_s),
    )


def by_rule(job: Job, rng: np.random.Generator, num_windows: int) -> list[Floats]:
    """Return the windows that the policy measures, with a noise floor of three baselines of its own for each."""
    windows = []
    for _ in range(num_windows):
        run_sd = job.run_sd * math.sqrt(rng.chisquare(NUM_FLOOR_TRIALS - 1) / (NUM_FLOOR_TRIALS - 1))
        times = KnownTimes(step_s=job.cost_s, start_s=job.start_s, run_sd=run_sd, period=job.period)
        rule = trial_length(times, effect=job.effect, budget_left_s=BUDGET_S)
        windows.append(counted(job, StopRule(**msgspec.to_builtins(rule)), rng))
    return windows


def counted(job: Job, rule: StopRule, rng: np.random.Generator) -> Floats:
    assert rule.max_s is not None
    times = job.steps(rng, int(2 * rule.max_s / job.step_s) + 2 * rule.min_steps + 50)
    counted_steps = CountedSteps(rule)
    for place, step_s in enumerate(times.tolist(), 1):
        counted_steps.add(step_s)
        if counted_steps.reason_to_stop() is not None:
            return times[:place]
    return times


def best_fixed(job: Job, rng: np.random.Generator, num_windows: int, warmup_s: float) -> Outcome:
    lengths = [3]
    while lengths[-1] * job.cost_s < MOST_OF_ORACLE_S:
        lengths.append(math.ceil(lengths[-1] * 1.3))
    if job.period is not None:
        lengths += [job.period * number for number in (1, 2, 3)]
    longest = max(lengths)
    runs = [job.steps(rng, longest) for _ in range(num_windows)]
    outcomes = [outcome(job, [times[:length] for times in runs], warmup_s) for length in lengths]
    return min(outcomes, key=lambda candidate: candidate.total_s)


def new_warmup_s(job: Job) -> float:
    detector = WarmupDetector()
    while not detector.is_over(StepSource.OPTIMIZER, is_training=True):
        detector.add(job.step_s)
    return detector.num_steps * job.step_s


def old_warmup_s(job: Job) -> float:
    num_steps = max(OLD_WARMUP, min(math.ceil(OLD_WARMUP_S / job.step_s), OLD_WARMUP_WITHOUT_TIME))
    return num_steps * job.step_s


def measure(job: Job, seed: int, num_windows: int) -> dict[str, Outcome]:
    rng = np.random.default_rng(seed)
    warmup_s = new_warmup_s(job)
    old = [job.steps(rng, OLD_STEPS) for _ in range(num_windows)]
    return {
        "policy": outcome(job, by_rule(job, rng, num_windows), warmup_s),
        "thirty steps": outcome(job, old, old_warmup_s(job)),
        "oracle": best_fixed(job, rng, num_windows, warmup_s),
    }


def all_jobs() -> list[Job]:
    names = ("start_s", "step_s", "step_sd", "correlation", "run_sd", "period", "effect")
    values = itertools.product(START_S, STEP_S, STEP_SD, CORRELATION, RUN_SD, PERIOD, EFFECT)
    return [Job(**dict(zip(names, value, strict=True))) for value in values]  # type: ignore[arg-type]


def summary(results: list[tuple[Job, dict[str, Outcome]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return the ratios to the oracle, of all jobs and of some of them."""
    groups: dict[str, Callable[[Job], bool]] = {
        "all": lambda job: True,
        "steps of 5 ms": lambda job: job.step_s == 0.005,
        "steps of 1 s and 2 s": lambda job: job.step_s >= 1.0,
        "2x": lambda job: job.effect == 1.0,
        "1.03x": lambda job: job.effect == 0.03,
        "with a period": lambda job: job.period is not None,
        "noisy, correlated steps": lambda job: job.step_sd == 0.3 and job.correlation > 0,
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    for group, belongs in groups.items():
        of_group = [outcomes for job, outcomes in results if belongs(job)]
        if not of_group:
            continue
        found[group] = {"jobs": {"number": len(of_group)}}
        for name in ("policy", "thirty steps"):
            ratios = [outcomes[name].total_s / outcomes["oracle"].total_s for outcomes in of_group]
            found[group][name] = {
                "median": round(median(ratios), 3),
                "p90": round(float(np.quantile(ratios, 0.9)), 3),
                "worst": round(max(ratios), 3),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    jobs = all_jobs()
    chosen = np.random.default_rng(arguments.seed).choice(len(jobs), size=min(arguments.jobs, len(jobs)), replace=False)
    results = []
    for number in sorted(chosen.tolist()):
        outcomes = measure(jobs[number], arguments.seed + number, arguments.windows)
        results.append((jobs[number], outcomes))
    table = summary(results)
    for group, row in table.items():
        sys.stdout.write(f"{group:26} {json.dumps(row)}\n")
    if arguments.out is not None:
        rows = [{"job": job, **outcomes} for job, outcomes in results]
        content = {"arguments": {**vars(arguments), "out": None}, "summary": table, "jobs": rows}
        arguments.out.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


if __name__ == "__main__":
    main()
