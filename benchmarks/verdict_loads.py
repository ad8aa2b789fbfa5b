"""How often a whole tuning is wrong where other programs load some of its trials, and what a gain takes then.

    python benchmarks/verdict_loads.py [--tunings 400] [--out benchmarks/results/verdict_loads.json]

Each tuning has two arms on two cores. In some trials, other programs keep 0.55 to 0.95 of the cores busy that are idle
in the others: less than what makes a trial invalid. Such a trial takes longer by all of what fair shares of the cores
would give, by nothing, or by anything between. The loads come at random, or nearly always in one arm. False claims are
those of identical arms, over all analyses of a tuning. No job is run.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.kept_result import keep

from flatout.records.trial import BASELINE, Covariates, TrialResult
from flatout.verdict.arms import judge_arms

ORDER = "AABABABABABABABABAB"
CORES, QUIET = 2.0, 0.05
SLOWED = {"fully": (1.0, 1.0), "not at all": (0.0, 0.0), "in part": (0.0, 1.0)}
# Shares of the trials that are loaded: of the baseline, and of the candidate.
LOADED = {"both arms": (0.35, 0.35), "candidate": (0.05, 0.6), "baseline": (0.6, 0.05)}


def tuning(random: np.random.Generator, *, noise: float, gain: float, loaded: str, slowed: str) -> list[TrialResult]:
    """Return the trials of a tuning with a run noise and a true log speedup."""
    trials = []
    for index, letter in enumerate(ORDER):
        is_candidate = letter == "B"
        is_loaded = random.random() < LOADED[loaded][is_candidate]
        load = QUIET + is_loaded * random.uniform(0.55, 0.95)
        part = random.uniform(*SLOWED[slowed])
        log = noise * random.standard_normal() - gain * is_candidate + part * math.log1p((load - QUIET) / CORES)
        trials.append(
            TrialResult(
                index=index,
                arm="candidate" if is_candidate else BASELINE,
                outcome="completed",
                step_s=(0.1 * math.exp(log),),
                covariates=Covariates(cores_busy_by_others=load, cores_allowed=CORES),
            )
        )
    return trials


def rates(num: int, *, noise: float, gain: float, loaded: str, slowed: str) -> dict[str, Any]:
    """Return how often the arms are called different, the truth is in the interval, and the trials it takes."""
    random = np.random.default_rng(7)
    num_claims = num_covered = num_intervals = 0
    widths = []
    for _ in range(num):
        trials = tuning(random, noise=noise, gain=gain, loaded=loaded, slowed=slowed)
        verdict = judge_arms(trials, "candidate", is_last=True)
        num_claims += verdict.verdict in ("better", "worse")
        if verdict.interval is not None:
            low, high = map(math.log, verdict.interval)
            num_intervals += 1
            num_covered += low <= gain <= high
            widths.append(high - low)
    return {
        "noise": noise,
        "true_speedup": math.exp(gain),
        "loaded": loaded,
        "slowed": slowed,
        "claims": num_claims / num,
        "coverage": num_covered / max(num_intervals, 1),
        "median_width_log": float(np.median(widths)) if widths else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=400)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    rows = []
    for gain in (0.0, math.log(1.5)):
        for loaded in LOADED:
            for slowed in SLOWED:
                row = rates(asked.tunings, noise=0.1, gain=gain, loaded=loaded, slowed=slowed)
                rows.append(row)
                print(json.dumps(row), flush=True)
    if asked.out is not None:
        keep({"tunings": asked.tunings, "rows": rows}, asked.out)


if __name__ == "__main__":
    main()
