"""How soon a slowdown of a running job is found, and how often one is found that is none.

Step times of 0.3 s are made up: correlated noise of 1.2 %, 2 % of the steps 1.3 to 2.5 times as long, a wander of 1 %
per day, and a checkpoint of five steps' time each 1,000 steps. Three more series, of 100,000 steps each, are those of a
job on a machine that becomes busy: more noise after an hour, blocks that wander by 2 %, and bursts of 10 to 30 steps.
The two other tests end with their first alarm. The rule of `flatout watch` is compared with
Page-Hinkley's test (on the logarithm of the step time, with 0.02 and 3) and with a fixed threshold (the median of 60
steps 5 % above that of the first 300).

    python benchmarks/live_diagnosis.py [--days 6] [--repeats 20]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from itertools import accumulate
from statistics import median

import numpy as np
from numpy.typing import NDArray

from flatout.watch.diagnosis.change_points import ChangePoints

STEP_S = 0.3
STEPS_PER_DAY = round(86_400 / STEP_S)
AT = 3000  # the step at which a slowdown begins
NOISE, CORRELATION, SPIKES, WANDER = 0.012, 0.3, 0.02, 0.005
CHECKPOINT_EVERY, CHECKPOINT_STEPS = 1000, 5


def step_times(num_steps: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return step times without a slowdown, in seconds."""
    noise = generator.normal(0, NOISE, num_steps)
    logarithms = np.array(list(accumulate(noise, lambda before, new: CORRELATION * before + new)))
    is_spike = generator.random(num_steps) < SPIKES
    logarithms += np.where(is_spike, np.log(generator.uniform(1.3, 2.5, num_steps)), 0)
    phase = generator.random() * 2 * math.pi
    logarithms += WANDER * np.sin(np.arange(num_steps) / STEPS_PER_DAY * 2 * math.pi + phase)
    logarithms[::CHECKPOINT_EVERY] += math.log(1 + CHECKPOINT_STEPS)
    return STEP_S * np.exp(logarithms)


def _noisier(num_steps: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return steps whose noise grows to 5 % after an hour."""
    times = step_times(num_steps, generator)
    times[12_000:] *= np.exp(generator.normal(0, 0.05, num_steps - 12_000))
    return times


def _wandering(num_steps: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return steps whose blocks of 20 wander by 2 %, each half of the way back, and less in the first 3,000."""
    times = step_times(num_steps, generator)
    changes = generator.normal(0, 0.02, num_steps // 20)
    levels = np.array(list(accumulate(changes, lambda before, new: 0.5 * before + new)))
    levels[:150] *= 0.2
    return times * np.exp(np.repeat(levels, 20))


def _with_bursts(num_steps: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Return steps of which, once in 300, 10 to 30 are slower by 3 to 8 %."""
    times = step_times(num_steps, generator)
    step = int(generator.exponential(300))
    while step < num_steps:
        length = int(generator.integers(10, 30))
        times[step : step + length] *= 1 + generator.uniform(0.03, 0.08)
        step += length + int(generator.exponential(300))
    return times


BUSY: dict[str, Callable[[int, np.random.Generator], NDArray[np.float64]]] = {
    "noisier": _noisier,
    "wandering": _wandering,
    "bursts": _with_bursts,
}


def slower(times: NDArray[np.float64], share: float) -> NDArray[np.float64]:
    """Return the times with a slowdown of `share` from AT on."""
    return np.concatenate([times[:AT], times[AT:] * (1 + share)])


def decaying(times: NDArray[np.float64], share_per_100: float) -> NDArray[np.float64]:
    """Return the times with a slowdown that grows by `share_per_100` every 100 steps from AT on."""
    steps = np.maximum(np.arange(len(times)) - AT, 0)
    return times * (1 + share_per_100 * steps / 100)


def own_alarms(times: Iterable[float]) -> list[int]:
    """Return the steps at which the rule of `flatout watch` raises an alarm."""
    changes = ChangePoints()
    return [step for step, time in enumerate(times, 1) if changes.add(step, float(time)) is not None]


def page_hinkley_alarms(times: Iterable[float], delta: float = 0.02, limit: float = 3.0) -> list[int]:
    mean = total = least = 0.0
    for step, time in enumerate(times, 1):
        value = math.log(time)
        mean += (value - mean) / step
        total += value - mean - delta
        least = min(least, total)
        if total - least > limit and step > 600:
            return [step]
    return []


def threshold_alarms(times: Iterable[float]) -> list[int]:
    values = list(times)
    reference = median(values[:300])
    for end in range(360, len(values) + 1, 20):
        if median(values[end - 60 : end]) > 1.05 * reference:
            return [end]
    return []


RULES: dict[str, Callable[[Iterable[float]], list[int]]] = {
    "flatout watch": own_alarms,
    "Page-Hinkley 0.02/3": page_hinkley_alarms,
    "fixed threshold 5 %": threshold_alarms,
}
SHAPES: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    "+3 %": lambda times: slower(times, 0.03),
    "+5 %": lambda times: slower(times, 0.05),
    "+10 %": lambda times: slower(times, 0.10),
    "+20 %": lambda times: slower(times, 0.20),
    "+1 % per 100 steps": lambda times: decaying(times, 0.01),
}


def delays(rule: Callable[[Iterable[float]], list[int]], shape: str, repeats: int) -> list[int | None]:
    """Return the steps from the slowdown to the alarm, None where it is missed or raised before."""
    found: list[int | None] = []
    for repeat in range(repeats):
        alarms = rule(SHAPES[shape](step_times(9000, np.random.default_rng(repeat))))
        found.append(alarms[0] - AT if alarms and alarms[0] > AT else None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    heads = [f"days of {arguments.days} with a false alarm", *(f"{name}: alarms in 8 h" for name in BUSY), *SHAPES]
    print("| rule | " + " | ".join(heads) + " |")
    print("|---" * (1 + len(heads)) + "|")
    for name, rule in RULES.items():
        days = [step_times(STEPS_PER_DAY, np.random.default_rng(1000 + day)) for day in range(arguments.days)]
        num_false = sum(bool(rule(day)) for day in days)
        cells = [str(len(rule(make(100_000, np.random.default_rng(0))))) for make in BUSY.values()]
        for shape in SHAPES:
            seen = delays(rule, shape, arguments.repeats)
            in_time = [delay for delay in seen if delay is not None]
            middle = f"{median(in_time):.0f} steps" if in_time else "-"
            cells.append(f"{middle}, {seen.count(None)} missed")
        print(f"| {name} | {num_false} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
