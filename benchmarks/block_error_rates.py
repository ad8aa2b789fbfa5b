"""How often blocks within one job claim a difference between identical arms, and how often they find a planted one.

    python benchmarks/block_error_rates.py [--jobs 2000] [--out results/block_error_rates.json]

Needs Flatout only. Each simulated job has eight units of blocks in random order, with noise of steps and of the
machine, and both arms are judged by `flatout.verdict.blocks`. The file is written after each scenario, and a run with
the same options goes on from there. A slice of it runs in `tests/verdict`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from flatout.records.blocks import Block
from flatout.records.trial import BASELINE
from flatout.trial.block_schedule import orders
from flatout.verdict.blocks import judge_blocks

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]
NUM_UNITS = 8
NUM_STEPS = 20  # measured per block


class Scenario(NamedTuple):
    """Noise of all steps of a job, in the log of a step; and long steps, as multiples of the usual step."""

    noise: Noise
    period: int = 0  # steps between those with periodic work; 0: none
    work: float = 0.0  # of such a step, in steps
    is_hooked: bool = False  # the recorder knows the time of the periodic work
    transient: float = 0.0  # how much slower the first step after a switch is; it decays
    decay: float = 3.0  # steps


def white(sd: float) -> Noise:
    return lambda random_numbers, count: random_numbers.normal(0, sd, count)


def correlated(sd: float, correlation: float) -> Noise:
    """Return noise of which each step depends on the one before (AR(1)), with a standard deviation of `sd`."""

    def noise(random_numbers: np.random.Generator, count: int) -> Floats:
        shocks = random_numbers.normal(0, sd * math.sqrt(1 - correlation**2), count).tolist()
        level, levels = 0.0, []
        for shock in shocks:
            level = correlation * level + shock
            levels.append(level)
        return np.array(levels)

    return noise


def drift(per_1000: float, sd: float = 0.03) -> Noise:
    return lambda random_numbers, count: random_numbers.normal(0, sd, count) + per_1000 * np.arange(count) / 1000


def walk(per_step: float, sd: float = 0.03) -> Noise:
    return lambda random_numbers, count: (
        random_numbers.normal(0, sd, count) + np.cumsum(random_numbers.normal(0, per_step, count))
    )


def spikes(share: float, factor: float, sd: float = 0.03) -> Noise:
    return lambda random_numbers, count: (
        random_numbers.normal(0, sd, count) + math.log(factor) * (random_numbers.random(count) < share)
    )


def two_states(difference: float, dwell: int, sd: float = 0.03) -> Noise:
    """Return noise of a machine that changes between two speeds every `dwell` steps or so."""

    def noise(random_numbers: np.random.Generator, count: int) -> Floats:
        state = np.cumsum(random_numbers.random(count) < 1 / dwell) % 2
        return np.asarray(random_numbers.normal(0, sd, count) + difference * state)

    return noise


def warming(by: float, steps: int, sd: float = 0.03) -> Noise:
    return lambda random_numbers, count: random_numbers.normal(0, sd, count) + by * np.exp(-np.arange(count) / steps)


BLOCK = NUM_STEPS + 1  # steps from block to block, about
SCENARIOS: dict[str, Scenario] = {
    "white 1 %": Scenario(white(0.01)),
    "white 5 %": Scenario(white(0.05)),
    "white 20 %": Scenario(white(0.2)),
    "autocorrelation 0.9": Scenario(correlated(0.1, 0.9)),
    "autocorrelation 0.99": Scenario(correlated(0.1, 0.99)),
    "drift 10 % in 1,000 steps": Scenario(drift(0.1)),
    "drift 100 % in 1,000 steps": Scenario(drift(0.7)),
    "random walk 1 % a step": Scenario(walk(0.01)),
    "spikes 2 %, 10x": Scenario(spikes(0.02, 10)),
    "spikes 10 %, 3x": Scenario(spikes(0.1, 3)),
    "two states 15 %, 20 steps": Scenario(two_states(0.15, 20)),
    "two states 30 %, 200 steps": Scenario(two_states(0.3, 200)),
    "warming 20 % in 200 steps": Scenario(warming(0.2, 200)),
    "every 7th step 5x, unknown": Scenario(white(0.03), period=7, work=4),
    "every 25th step 20x, unknown": Scenario(white(0.03), period=25, work=19),
    "every 2 blocks, unknown": Scenario(white(0.03), period=2 * BLOCK, work=19),
    "every 4 blocks, unknown": Scenario(white(0.03), period=4 * BLOCK, work=19),
    "every 4 blocks, hooked": Scenario(white(0.03), period=4 * BLOCK, work=19, is_hooked=True),
    "every 15th step 20x, hooked": Scenario(white(0.03), period=15, work=19, is_hooked=True),
    "carry-over 50 %, 3 steps": Scenario(white(0.03), transient=0.5),
}


def job(
    scenario: Scenario, numbers: np.random.Generator, *, effect: float = 0.0, num_units: int = NUM_UNITS
) -> list[Block]:
    """Return the blocks of one simulated job; the arm `x` is faster by `effect`, in the log."""
    names = [BASELINE, "x"]
    order = orders(1, num_units, random.Random(int(numbers.integers(1 << 62))))
    count = len(order) * (NUM_STEPS + 2)
    log_steps = scenario.noise(numbers, count)
    phase = int(numbers.integers(scenario.period)) if scenario.period else 0
    blocks: list[Block] = []
    step, before = 0, 0
    for number, arm in enumerate(order):
        is_switch = arm != before
        num_carry_over = 2 if is_switch else 1
        since = np.arange(num_carry_over, num_carry_over + NUM_STEPS)
        places = step + since
        times = np.exp(log_steps[places] - (effect if arm else 0.0))
        if is_switch and scenario.transient and arm:
            times *= 1 + scenario.transient * np.exp(-since / scenario.decay)
        periodic = np.zeros(NUM_STEPS)
        if scenario.period:
            periodic = scenario.work * ((places + phase) % scenario.period == 0)
        blocks.append(
            Block(
                number=number,
                arm=names[arm],
                is_switch=is_switch,
                num_carry_over=num_carry_over,
                step_s=tuple((times + periodic).tolist()),
                periodic_s=tuple(periodic.tolist()) if scenario.is_hooked else (0.0,) * NUM_STEPS,
            )
        )
        step, before = step + num_carry_over + NUM_STEPS, arm
    return blocks


class Rates(NamedTuple):
    false_claims: float  # of better or worse, with identical arms
    missed: float  # intervals that do not cover a true effect of 1
    power: float  # claims of better, with a planted effect


def rates(scenario: Scenario, *, num_jobs: int, effect: float = 0.1, seed: int = 1, has_power: bool = True) -> Rates:
    numbers = np.random.default_rng(seed)
    false = missed = found = 0
    for _ in range(num_jobs):
        result = judge_blocks(job(scenario, numbers), "x")
        false += result.verdict in ("better", "worse")
        missed += result.interval is not None and not result.interval[0] <= 1 <= result.interval[1]
        if has_power:
            found += judge_blocks(job(scenario, numbers, effect=effect), "x").verdict == "better"
    return Rates(false / num_jobs, missed / num_jobs, found / num_jobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    results = kept_rates(options.out, num_jobs=options.jobs, seed=options.seed)
    print("| scenario | false claims, % | intervals that miss, % | a gain of 10 % found, % |\n|---|---|---|---|")
    for name, scenario in SCENARIOS.items():
        if name not in results:
            results[name] = rates(scenario, num_jobs=options.jobs, seed=options.seed)._asdict()
            if options.out is not None:
                kept = {"jobs": options.jobs, "seed": options.seed, "rates": results}
                options.out.write_text(json.dumps(kept, indent=1) + "\n")
        shares = " | ".join(f"{100 * share:.1f}" for share in results[name].values())
        print(f"| {name} | {shares} |", flush=True)


def kept_rates(path: Path | None, *, num_jobs: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the rates that an interrupted run with the same seed and number of jobs has written."""
    if path is None or not path.exists():
        return {}
    kept = json.loads(path.read_text())
    is_same_run = (kept["jobs"], kept["seed"]) == (num_jobs, seed)
    return dict(kept["rates"]) if is_same_run else {}


if __name__ == "__main__":
    main()
