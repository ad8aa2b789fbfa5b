"""How often verdicts are wrong where each window of steps holds another part of a period, and on recorded tunings.

    python benchmarks/verdict_windows.py [--tunings 100] [--draws 1000] [--processes 1] [--out FILE]

Jobs with an epoch's end that takes as long as 40 steps, in windows shorter and longer than the epoch, are tuned by
`judge_arms` and `what_next` on the steps themselves. `fabric` goes on with a recorded tuning that ended after one trial
of its candidate: two more trials are drawn from the spread of its baselines. Seeds are fixed.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from flatout.records.trial import BASELINE, TrialResult
from flatout.records.verdict import Verdict
from flatout.verdict.arms import judge_arms
from flatout.verdict.prospect import is_worth_more, what_next

Generator = np.random.Generator

RECORDED = Path(__file__).parents[1] / "tests" / "data" / "tunings"
ORDER = "AAAA" + "BA" * 8


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose every `period`-th step carries an epoch's end; runs differ by 3 %, steps by 5 %."""

    period: int
    num_steps: int  # measured per trial
    step_s: float = 0.06
    boundary_s: float = 2.4
    first_boundary: float = 1.5  # the first one takes this many times as long
    run_sd: float = 0.03
    knows_steps: bool = True  # the journal has the absolute number of the first measured step

    def trial(
        self, rng: Generator, index: int, arm: str, *, regular: float = 1.0, boundary: float = 1.0
    ) -> TrialResult:
        first = int(rng.integers(5, 25))  # the warm-up's length differs
        numbers = first + np.arange(self.num_steps)
        steps = regular * self.step_s * np.exp(rng.normal(0, 0.05, self.num_steps))
        is_end = numbers % self.period == self.period - 1
        extra = np.exp(rng.normal(0, 0.1, int(is_end.sum()))) * np.where(
            numbers[is_end] < self.period, self.first_boundary, 1
        )
        steps[is_end] = boundary * self.boundary_s * extra
        steps *= math.exp(rng.normal(0, self.run_sd))
        return TrialResult(
            index=index,
            arm=arm,
            outcome="completed",
            step_s=tuple(steps.tolist()),
            first_step=first if self.knows_steps else None,
        )

    def log_speedup(self, regular: float, boundary: float) -> float:
        def cost(of_step: float, of_boundary: float) -> float:
            return self.step_s * of_step * (1 - 1 / self.period) + self.boundary_s * of_boundary / self.period

        return math.log(cost(1, 1) / cost(regular, boundary))


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """How one tuning ended."""

    verdict: Verdict
    num_trials: int
    is_given_up: bool


def tune_windows(job: Job, rng: Generator, *, regular: float, boundary: float, order: str = ORDER) -> Tuned:
    """Run one tuning, judged after each trial of the candidate."""
    trials: list[TrialResult] = []
    verdict = judge_arms(trials, "candidate")
    for index, arm in enumerate(order):
        if arm == "A":
            trials.append(job.trial(rng, index, BASELINE))
            continue
        trials.append(job.trial(rng, index, "candidate", regular=regular, boundary=boundary))
        verdict = judge_arms(trials, "candidate")
        if verdict.verdict != "undecided":
            break
        if verdict.interval is not None and not is_worth_more(what_next(trials, "candidate")):
            return Tuned(verdict=verdict, num_trials=len(trials), is_given_up=True)
    return Tuned(verdict=verdict, num_trials=len(trials), is_given_up=False)


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the results."""

    job: Job
    regular: float  # a regular step of the candidate takes this share of the baseline's
    boundary: float
    tunings: int

    @property
    def name(self) -> str:
        job = self.job
        name = f"period {job.period}, window {job.num_steps}, steps x{self.regular:g}, boundary x{self.boundary:g}"
        return name + ("" if job.knows_steps else ", step numbers unknown")

    def run(self) -> dict[str, Any]:
        true = self.job.log_speedup(self.regular, self.boundary)
        right = {True: "better", False: "worse"}[true > 0] if true else "equivalent"
        tuned = []
        for tuning in range(self.tunings):
            rng = np.random.default_rng([11, self.job.period, self.job.num_steps, tuning])
            tuned.append(tune_windows(self.job, rng, regular=self.regular, boundary=self.boundary))
        is_claim = [one.verdict.verdict in ("better", "worse") for one in tuned]
        is_right = [one.verdict.verdict == right for one in tuned]
        # If the windows do not show the epoch's end, the figures are those of the steps without it.
        whole = [one.verdict for one in tuned if not one.verdict.unmeasured_work and one.verdict.interval is not None]
        covers = [low <= math.exp(true) <= high for low, high in (verdict.interval or (0, 0) for verdict in whole)]
        return {
            "true_speedup": round(math.exp(true), 3),
            "false_claims": float(
                np.mean([claim and not right for claim, right in zip(is_claim, is_right, strict=True)])
            ),
            "right": float(np.mean(is_right)),
            "given_up": float(np.mean([one.is_given_up for one in tuned])),
            "whole": len(whole) / len(tuned),
            "coverage_where_whole": float(np.mean(covers)) if covers else None,
            "median_trials": float(np.median([one.num_trials for one in tuned])),
        }


def kinds(count: int) -> list[Kind]:
    jobs = ((15, 20), (15, 30), (15, 60), (40, 20), (40, 30), (40, 60), (40, 100), (400, 60))
    changes = ((1.0, 1.0), (1.0, 0.5), (0.5, 1.0), (0.8, 0.8))
    return [
        Kind(
            job=Job(period=period, num_steps=num_steps, knows_steps=knows_steps),
            regular=regular,
            boundary=boundary,
            tunings=count,
        )
        for (period, num_steps), (regular, boundary), knows_steps in itertools.product(jobs, changes, (True, False))
    ]


def fabric(draws: int) -> dict[str, float]:
    """Return how often the recorded tuning is decided after one and two more trials of its candidate."""
    lines = (RECORDED / "fabric.jsonl").read_text().splitlines()
    trials = [msgspec.json.decode(line, type=TrialResult) for line in lines]
    baselines = [math.log(np.mean(trial.step_s)) for trial in trials if trial.arm == BASELINE]
    candidate = trials[-1]
    centre, sd = math.log(np.mean(candidate.step_s)), float(np.std(baselines, ddof=1))
    decided = {1: 0, 2: 0}
    for draw in range(draws):
        rng = np.random.default_rng([13, draw])
        more = [*trials]
        for count in decided:
            steps = (math.exp(rng.normal(centre, sd)),)
            more.append(msgspec.structs.replace(candidate, index=len(more), step_s=steps))
            verdict = judge_arms(more, candidate.arm, chosen_by=frozenset({candidate.index}))
            decided[count] += verdict.verdict == "better"
    return {f"better after {count} more": number / draws for count, number in decided.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=100)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    todo = kinds(arguments.tunings)
    results = {}
    with ProcessPoolExecutor(arguments.processes) as pool:
        recorded = pool.submit(fabric, arguments.draws)
        for kind, row in zip(todo, pool.map(Kind.run, todo), strict=True):
            results[kind.name] = row
            print(f"{kind.name}: {json.dumps(row)}", file=sys.stderr, flush=True)
        document = {
            "tunings": arguments.tunings,
            "draws": arguments.draws,
            "windows": results,
            "fabric": recorded.result(),
            "took_s": round(time.monotonic() - began, 1),
        }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
