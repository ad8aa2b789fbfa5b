"""Whether short windows of real jobs with short epochs give the arms' true ratio: two gloo ranks on CPUs.

    python benchmarks/short_epochs.py [--only NAME] [--together] [--out results.json]

Each job of `tests/jobs/epochs_job.py` sleeps known times; the candidate has shorter steps, and an epoch's end that is
as long or shorter. Every trial is a fresh start of `flatout profile --light`, stopped after its window, and begins to
measure after another number of steps. The truth is a long run of each arm, from its second epoch on, over whole epochs.
`plain` is the ratio of the windows' means.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from flatout.inside.protocol import Variable
from flatout.profile import read_recording
from flatout.records.recording import Recording
from flatout.records.trial import BASELINE, TrialResult
from flatout.trial.result import mean_steps
from flatout.trial.step_kinds import step_numbers, step_spells
from flatout.verdict.arm_step import arm_step
from flatout.verdict.cost import trial_costs

ROOT = Path(__file__).parents[1]
JOB = ROOT / "tests" / "jobs" / "epochs_job.py"
FRESH = 3  # trials of each arm
FIRST_TRUE_EPOCH = 2


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the job in both arms, and the windows."""

    steps: int  # of an epoch
    baseline: tuple[str, ...]
    candidate: tuple[str, ...]
    window: int
    warmups: tuple[tuple[int, ...], tuple[int, ...]]  # by arm: where windows begin
    saves_every: int = 1  # epochs


CASES = {
    # Baselines hold two ends of an epoch, candidates one.
    "two boundaries against one": Case(
        steps=15,
        baseline=("--step-ms", "60", "--evaluation-ms", "600"),
        candidate=("--step-ms", "20", "--evaluation-ms", "500"),
        window=20,
        warmups=((12, 13, 14), (17, 19, 21)),
    ),
    "one boundary against two": Case(
        steps=15,
        baseline=("--step-ms", "60", "--evaluation-ms", "600"),
        candidate=("--step-ms", "20", "--evaluation-ms", "600"),
        window=20,
        warmups=((17, 19, 21), (12, 13, 14)),
    ),
    "a window shorter than the epoch": Case(
        steps=24,
        baseline=("--step-ms", "40", "--evaluation-ms", "500"),
        candidate=("--step-ms", "20", "--evaluation-ms", "500"),
        window=14,
        warmups=((36, 40, 50), (37, 44, 51)),
    ),
    "a checkpoint every second epoch": Case(
        steps=10,
        baseline=("--step-ms", "40", "--evaluation-ms", "100", "--save-ms", "600"),
        candidate=("--step-ms", "20", "--evaluation-ms", "100", "--save-ms", "600"),
        window=30,
        warmups=((11, 14, 22), (12, 16, 25)),
        saves_every=2,
    ),
    "equal arms": Case(
        steps=15,
        baseline=("--step-ms", "30", "--evaluation-ms", "500"),
        candidate=("--step-ms", "30", "--evaluation-ms", "500"),
        window=20,
        warmups=((12, 13, 14), (17, 19, 21)),
    ),
}


def record(options: list[str], folder: Path, *, warmup: int, stop_after: int | None) -> Recording:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
    profile = [sys.executable, "-m", "flatout", "profile", "--light", "--warmup", str(warmup), "--out", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    if stop_after is not None:
        environment[Variable.STOP_AFTER] = str(stop_after)
    done = subprocess.run(
        [*profile, "--", *launch, *options], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        sys.exit(done.stderr)
    return read_recording(folder)


def trial(index: int, arm: str, recording: Recording, steps: int) -> TrialResult:
    numbers = step_numbers(recording.ranks)
    return TrialResult(
        index=index,
        arm=arm,
        outcome="completed",
        step_s=mean_steps(recording.ranks),
        first_step=numbers.first,
        unmeasured_steps=numbers.unmeasured,
        spells=step_spells(recording.ranks),
        steps_per_epoch=steps,
    )


def run_case(case: Case, folder: Path) -> dict[str, Any]:
    common = ["--steps", str(case.steps), "--save-every", str(case.saves_every)]
    arms = {BASELINE: case.baseline, "candidate": case.candidate}
    truth = {}
    num_true = 4 * case.saves_every
    for arm, options in arms.items():
        epochs = ["--epochs", str(FIRST_TRUE_EPOCH + num_true + 1)]
        long = record([*common, *options, *epochs], folder / f"long-{arm}", warmup=1, stop_after=None)
        numbers = step_numbers(long.ranks).first or 0
        begin = FIRST_TRUE_EPOCH * case.steps - numbers
        truth[arm] = float(np.mean(mean_steps(long.ranks)[begin : begin + num_true * case.steps]))
    trials = []
    for turn in range(FRESH):
        for warmups, (arm, options) in zip(case.warmups, arms.items(), strict=True):
            warmup = warmups[turn]
            epochs = ["--epochs", str((warmup + case.window) // case.steps + 3)]
            recording = record(
                [*common, *options, *epochs],
                folder / f"trial-{len(trials)}",
                warmup=warmup,
                stop_after=case.window,
            )
            trials.append(trial(len(trials), arm, recording, case.steps))
    costs = trial_costs(trials, "step_s")
    logs = {arm: np.mean([costs[t.index].log for t in trials if t.arm == arm]) for arm in arms}
    plain = {arm: np.mean([math.log(np.mean(t.step_s)) for t in trials if t.arm == arm]) for arm in arms}
    steps = {arm: arm_step([costs[t.index] for t in trials if t.arm == arm]) for arm in arms}
    return {
        "true_ratio": round(truth[BASELINE] / truth["candidate"], 3),
        "ratio": round(float(math.exp(logs[BASELINE] - logs["candidate"])), 3),
        "plain_ratio": round(float(math.exp(plain[BASELINE] - plain["candidate"])), 3),
        "true_step_s": {arm: round(value, 5) for arm, value in truth.items()},
        "steps": {arm: msgspec.to_builtins(step) for arm, step in steps.items()},
        "windows": [[t.arm, t.first_step, len(t.step_s)] for t in trials],
        "is_whole": all(cost.is_whole for cost in costs.values()),
    }


def timed_case(name: str) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = run_case(CASES[name], Path(folder))
    print(
        f"{name}: true {found['true_ratio']}, found {found['ratio']}, plain {found['plain_ratio']}"
        f" ({time.monotonic() - began:.0f} s)",
        flush=True,
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only")
    parser.add_argument("--together", action="store_true", help="all cases at once, on a machine with many cores")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names = [name for name in CASES if options.only in (None, name)]
    with ThreadPoolExecutor(len(names) if options.together else 1) as pool:
        results = dict(zip(names, pool.map(timed_case, names), strict=True))
    report = {"python": platform.python_version(), "machine": platform.processor(), "cases": results}
    if options.out is not None:
        options.out.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
