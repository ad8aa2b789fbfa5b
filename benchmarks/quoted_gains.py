"""How far the gain that a verdict quotes is from the true one, beside the plain mean of its pairs; simulated trials.

    python benchmarks/quoted_gains.py [--tunings 2000] [--jobs 2] [--small-weight 4] [--noise 0.04] [--out results.json]

The model of `verdict_error_rates.py` (steps of 2 % noise, spikes, a drift), with run noise of 0.5, 1.2 and 4 % and true
effects of 1.5 % to 200 %. Errors are of logarithms, in hundredths: per cent points, nearly. "Better": of the tunings
that were called better, which are those that are quoted; "all": whatever the verdict, at its last analysis. Seeds are
fixed. `--small-weight` sets that of `flatout.verdict.corrected`, to compare. Ten minutes on two busy cores.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray
from verdict_error_rates import Model, Simulated, rng_of

from flatout.records.trial import BASELINE
from flatout.records.verdict import Verdict
from flatout.tune.floor import NUM_FLOOR_TRIALS
from flatout.verdict import corrected
from flatout.verdict.interim import DEFAULT_INTERIM
from flatout.verdict.judge import judge
from flatout.verdict.noise import noise_floor

EFFECTS = (0.015, 0.03, 0.05, 0.1, 0.3, 2.0)
NOISES = (0.005, 0.012, 0.04)


def verdict_of(model: Model, key: int, tuning: int) -> Verdict:
    job = Simulated(model, rng_of(400, key, tuning))
    floor = noise_floor([job.trial(BASELINE) for _ in range(NUM_FLOOR_TRIALS)])
    return judge(job.pairs(DEFAULT_INTERIM.max_pairs), floor=floor)


def cell(run_sd: float, effect: float, tunings: int, small_weight: float) -> dict[str, Any]:
    corrected.SMALL_WEIGHT = small_weight
    key = 10 * NOISES.index(run_sd) + EFFECTS.index(effect)
    verdicts = [verdict_of(Model(run_sd=run_sd, effect=effect), key, tuning) for tuning in range(tunings)]
    better = [verdict for verdict in verdicts if verdict.verdict == "better"]
    return {
        "run_noise": run_sd,
        "effect": effect,
        "tunings": tunings,
        "called_better": len(better) / tunings,
        "mean_pairs": sum(verdict.num_pairs for verdict in verdicts) / tunings,
        "better": summary(better, effect),
        "all": summary(verdicts, effect),
    }


def summary(verdicts: list[Verdict], effect: float) -> dict[str, Any]:
    if not verdicts:
        return {"tunings": 0}
    lows, highs = np.array([verdict.interval for verdict in verdicts]).T
    return {
        "tunings": len(verdicts),
        "interval_holds_truth": float(((lows <= 1 + effect) & (1 + effect <= highs)).mean()),
        "interval_half_width": float(np.median(100 * np.log(highs / lows) / 2)),
        "mean_of_pairs": errors(np.log([verdict.mean_speedup or math.nan for verdict in verdicts]), effect),
        "quoted": errors(np.log([verdict.speedup or math.nan for verdict in verdicts]), effect),
    }


def errors(logs: NDArray[np.float64], effect: float) -> dict[str, float]:
    off = 100 * (logs - math.log1p(effect))
    return {
        "bias": float(off.mean()),
        "bias_standard_error": float(off.std() / math.sqrt(len(off))),
        "median_bias": float(np.median(off)),
        "rmse": float(math.sqrt((off**2).mean())),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--small-weight", type=float, default=corrected.SMALL_WEIGHT)
    parser.add_argument("--noise", type=float, action="append", choices=NOISES)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    wanted = [(noise, effect) for noise in arguments.noise or NOISES for effect in EFFECTS]
    with ProcessPoolExecutor(arguments.jobs) as pool:
        futures = [pool.submit(cell, *one, arguments.tunings, arguments.small_weight) for one in wanted]
        cells = []
        for future in futures:
            cells.append(future.result())
            print(json.dumps(cells[-1]), file=sys.stderr, flush=True)
    document = {
        "conditions": {
            "tunings": arguments.tunings,
            "small_weight": arguments.small_weight,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "machine": platform.machine(),
            "took_s": round(time.monotonic() - began, 1),
        },
        "cells": cells,
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
