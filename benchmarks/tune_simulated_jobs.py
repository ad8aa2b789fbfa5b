"""Tune twelve simulated jobs, whose truth is known, with this version and an earlier one: the time to the verdict.

    python benchmarks/tune_simulated_jobs.py --out FILE [--budget 300] [--seeds 10]
    git worktree add BEFORE COMMIT
    python benchmarks/tune_simulated_jobs.py --source BEFORE --out OTHER_FILE

The jobs are those of `tune_twelve_jobs.py` in kind: short and long epochs, slow and tiny steps, noise, drift, two
causes at once, nothing to gain. The loop of `--source`, its warm-up and its rule of how many steps a trial counts run
unchanged, on step times that are drawn instead of measured; so all times are those of the simulated job, and other work
on the machine changes none of them. A start takes 15 s besides the warm-up. Each job is tuned with `--seeds` seeds. A
claim that says of itself that it leaves out work which no trial measured is held against the gain of the other steps.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

LAUNCH_S, END_S, PROFILE_S = 14.0, 1.0, 8.0
TRACED_STEPS = 8  # with those before and after the trace
STEP_SD = 0.03
SOCKETS, LOADER = "nccl-sockets", "dataloader-workers"
LARGE = 1.25  # from this speedup on, an effect is large


@dataclass(frozen=True, slots=True)
class Job:
    name: str
    speedups: dict[str, float] = field(default_factory=dict)  # of a regular step, by knob
    step_s: float = 0.25
    run_sd: float = 0.01
    drift: float = 0.0  # share by which steps get longer in an hour
    epoch: int = 0  # steps; 0: no epoch ends
    boundary_s: float = 0.0
    communication: float = 0.0  # shares of the step that the findings say
    loading: float = 0.0

    @property
    def true_speedup(self) -> float:
        extra_s = self.boundary_s / self.epoch if self.epoch else 0.0
        fast_s = self.step_s / math.prod(self.speedups.values())
        return (self.step_s + extra_s) / (fast_s + extra_s)

    def claimed_speedup(self, row: dict[str, Any]) -> float:
        """Return the true gain of what was claimed: of the whole job, or of the steps without work of some of them."""
        return math.prod(self.speedups.values()) if row["unmeasured_work"] else self.true_speedup


JOBS = (
    Job("2x", {SOCKETS: 2.0}, communication=0.6),
    Job("1.3x", {SOCKETS: 1.3}, communication=0.4),
    Job("1.1x", {SOCKETS: 1.1}, communication=0.4),
    Job("short epochs", {SOCKETS: 2.0}, epoch=15, boundary_s=2.4, communication=0.4),
    Job("long epochs", {SOCKETS: 2.0}, step_s=0.05, epoch=400, boundary_s=3.0, communication=0.4),
    Job("slow steps", {SOCKETS: 2.0}, step_s=1.0, communication=0.6),
    Job("tiny steps", {SOCKETS: 2.0}, step_s=0.005, communication=0.6),
    Job("noisy, 2x", {SOCKETS: 2.0}, run_sd=0.1, communication=0.6),
    Job("drifting, 1.5x", {SOCKETS: 1.5}, drift=0.5, communication=0.4),
    Job("loader that waits", {LOADER: 4.4}, loading=0.8),
    Job("two findings", {SOCKETS: 1.6, LOADER: 1.4}, communication=0.4, loading=0.3),
    Job("nothing to gain", communication=0.4, loading=0.3),
)


def simulated_runner(job: Job, seed: int) -> Any:
    """Return a runner of the version on the path, for this job."""
    from tests.tune import simulated

    from flatout.inside.phases.warmup import WarmupDetector
    from flatout.inside.recording.step_detector import StepSource
    from flatout.records.trial import BASELINE, TrialResult

    shares = {"exposed-communication": job.communication, "data-loading": job.loading}
    simulated.STEP_S = job.step_s
    simulated.COSTS = {name: share * job.step_s for name, share in shares.items() if share}

    class Runner(simulated.SimulatedRunner):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__({}, seed=seed)
            self._costs = dict(simulated.COSTS)
            self.places: list[tuple[str, str, float]] = []  # the arm and the place of each trial, and when it ended
            self._steps = np.random.default_rng([seed, 1])

        def trial(self, changes: Any, length: Any, place: str = "", **how: Any) -> TrialResult:
            times, first = self._times(changes, length)
            took_s = LAUNCH_S + float(times.sum()) + END_S
            end_s = self.now_s + took_s
            found = super().trial(changes, 20, place, **how)
            self.now_s = end_s
            if self.usual_s is None or changes.name == BASELINE:
                self.usual_s = took_s
            self.places.append((changes.name, place, self.now_s))
            start_s = LAUNCH_S + float(times[:first].sum())
            values = {
                "step_s": tuple(times[first:].tolist()),
                "start_s": start_s,
                "took_s": took_s,
                "first_step": first,
            }
            known = {name: value for name, value in values.items() if name in TrialResult.__struct_fields__}
            self.made[-1] = (changes.name, msgspec.structs.replace(found, **known))
            return self.made[-1][1]

        def profile(self, changes: Any, rule: Any = None, counted: Any = None) -> Any:
            rule = rule if counted is None else counted.rule  # earlier versions pass the rule alone
            profiled = super().profile(changes)
            if rule is None or LOADER in job.speedups:  # a job that waits for batches is slowed by timing their stages
                times, _ = self._times(changes, 20)
                self.now_s += LAUNCH_S + float(times.sum()) + PROFILE_S
                return profiled
            from flatout.inside.phases.consensus import num_untraced_steps

            usual_s = self.usual_s
            result = self.trial(changes, num_untraced_steps(rule, job.step_s), "profile")
            self.usual_s = usual_s
            self.now_s += TRACED_STEPS * job.step_s + PROFILE_S
            return msgspec.structs.replace(profiled, trial=result)

        def _times(self, changes: Any, length: Any) -> tuple[Any, int]:
            """Return the times of all steps of a start, and how many of them are warm-up."""
            rng = self._steps
            knobs = {change.name.partition("=")[0] for change in changes.changes}
            factor = math.prod(speedup for knob, speedup in job.speedups.items() if knob in knobs)
            of_run = math.exp(rng.normal(0, job.run_sd)) * (1 + job.drift * self.now_s / 3600)
            warmup, times = WarmupDetector(), [1.0]  # the first step is never counted
            counted, first = None, None
            while True:
                number = len(times)
                step_s = job.step_s / factor * of_run * math.exp(rng.normal(0, STEP_SD))
                if job.epoch and number % job.epoch == job.epoch - 1:
                    step_s += job.boundary_s
                times.append(step_s)
                if first is None:
                    warmup.add(step_s)
                    if warmup.is_over(StepSource.OPTIMIZER, is_training=True):
                        first, counted = len(times), counter(length)
                    continue
                assert counted is not None
                if counted(step_s):
                    return np.array(times), first

    return Runner()


def counter(length: Any) -> Any:
    """Return what takes the time of each counted step and says whether the trial ends after it."""
    if isinstance(length, int):
        left = iter(range(length - 1))
        return lambda step_s: next(left, None) is None
    from flatout.inside.phases.counted_steps import CountedSteps
    from flatout.inside.settings import StopRule

    steps = CountedSteps(StopRule(**msgspec.to_builtins(length)))

    def add(step_s: float) -> bool:
        steps.add(step_s)
        return steps.reason_to_stop() is not None

    return add


def without_predictions_and_gpus() -> None:
    """The job has no trace to replay, and no GPUs whose collectives could be measured."""
    import flatout.tune.choose as choose
    from flatout.records.prediction import NoPrediction

    choose.predict_all = lambda *_, **__: {}  # type: ignore[assignment]
    choose.situation_of = lambda *_, **__: NoPrediction(change="", family="", reason="it is simulated")  # type: ignore[assignment]
    try:
        import flatout.nccl_tuner.in_tuning as in_tuning
    except ImportError:
        return  # the earlier version measures no collectives
    in_tuning.Gpus = type("NoGpus", (), {"problem": "none", "facts": lambda self: []})  # type: ignore[misc]


def tune_once(job: Job, seed: int, budget_s: float) -> dict[str, Any]:
    from flatout.tune.loop import tune
    from flatout.tune.options import TuneOptions

    runner = simulated_runner(job, seed)
    result = tune(runner, TuneOptions(budget_s=budget_s, uses_history=False), lambda line: None)
    verdict = result.tuning.verdict
    row: dict[str, Any] = {"verdict": None, "num_trials": len(runner.places), "spent_s": round(runner.now_s, 1)}
    if verdict is None:
        return row
    claimed = {change.name for change in result.tuning.changes.changes}
    row |= {"verdict": verdict.verdict, "speedup": verdict.speedup, "interval": verdict.interval}
    row["changes"] = sorted(claimed)
    row["unmeasured_work"] = getattr(verdict, "unmeasured_work", ())
    row["verdict_s"] = claim_s(verdict, claimed, runner.places) if verdict.verdict == "better" else None
    return row


def claim_s(verdict: Any, claimed: set[str], places: Sequence[tuple[str, str, float]]) -> float:
    """Return when the trial ended with which the claim was complete; see `tune_twelve_jobs.verdict_s`."""
    order = verdict.order.replace(" ", "")
    ends = [end_s for name, _, end_s in places if set(name.split(" + ")) == claimed]
    if " " not in verdict.order:
        return round(ends[order.count("B") - 1], 1)
    pairs = [
        end_s
        for _, place, end_s in places
        if "pair of" in place and claimed <= set(place.replace(" and", "").replace(",", "").split())
    ]
    return round(pairs[min(len(order), len(pairs)) - 1] if pairs else ends[-1], 1)


def summary(job: Job, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return how often the job was called better, how soon, and whether that is true."""
    claims = [row for row in rows if row["verdict"] == "better"]
    times = [row["verdict_s"] for row in claims] + [math.inf] * (len(rows) - len(claims))
    median_s = statistics.median(times)
    covers = [holds_truth(job, row) for row in claims if is_whole(job, row)]
    return {
        "true_speedup": round(job.true_speedup, 3),
        "tunings": len(rows),
        "better": len(claims),
        "false": sum(job.true_speedup == 1.0 or row["interval"][0] > job.claimed_speedup(row) for row in claims),
        "without_some_work": sum(bool(row["unmeasured_work"]) for row in claims),
        "median_s_to_verdict": None if math.isinf(median_s) else round(median_s, 1),
        "whole_gain": len(covers),
        "interval_holds_it": sum(covers),
        "median_trials": statistics.median(row["num_trials"] for row in rows),
        "median_spent_s": round(statistics.median(row["spent_s"] for row in rows), 1),
    }


def holds_truth(job: Job, row: dict[str, Any]) -> bool:
    low, high = row["interval"]
    return bool(low <= job.claimed_speedup(row) <= high)


def is_whole(job: Job, row: dict[str, Any]) -> bool:
    """Whether the claim has every knob that helps, so that the true gain is the job's."""
    return {name.partition("=")[0] for name in row["changes"]} >= set(job.speedups)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budget", type=float, default=300.0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    sys.path[:0] = [str(options.source / "src"), str(options.source)]
    without_predictions_and_gpus()
    document: dict[str, Any] = {"budget_s": options.budget, "seeds": options.seeds, "jobs": {}}
    for job in JOBS:
        if options.only and job.name not in options.only:
            continue
        rows = [tune_once(job, seed, options.budget) for seed in range(options.seeds)]
        document["jobs"][job.name] = summary(job, rows)
        print(f"{job.name}: {json.dumps(document['jobs'][job.name])}", flush=True)
    large = [row for job in JOBS if job.true_speedup >= LARGE and (row := document["jobs"].get(job.name))]
    times = [row["median_s_to_verdict"] or math.inf for row in large]
    document["median_s_to_a_large_effect"] = statistics.median(times) if times else None
    options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
