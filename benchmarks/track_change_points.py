"""Change points of `flatout track check` on 500 simulated histories with known changes, and those of Apache Otava.

    python benchmarks/track_change_points.py --out FILE [--otava-python OTAVA/bin/python] [--series 500] [--seed 1]

Five kinds of histories: steps, drifts, outliers, two states, and machine swaps, of 20 to 200 results with 1 to 5 % of
noise. Each is judged at the rate of false alarms that `track check` has for one series.
Otava 0.8 (PyPI) gets the same values, with its own defaults (`compute_change_points`: p below 0.001, windows of 50) and
with the p-value of ours; it runs in a separate environment with `--otava-python`, and is skipped without one. A change
counts as found if one is reported within two results of it. Machine swaps: Flatout checks the two classes of machine
apart; Otava knows no classes, and gets both the mixed series and, to be fair, each class.
Times are seconds of a processor, which other work on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flatout.track.level_changes import segmentation

Values = NDArray[np.float64]
NEAR = 2  # results
RATE, EFFECT = 0.01, 0.01
LENGTH_OF_SPEED = 10_000
OTAVA = """
import json, sys, time
from otava.analysis import compute_change_points
request = json.load(open(sys.argv[1]))
answers, seconds = [], []
for values in request["series"]:
    begin = time.process_time()
    found, _ = compute_change_points(values, **request["options"])
    seconds.append(time.process_time() - begin)
    answers.append([int(point.index) for point in found])
json.dump({"changes": answers, "seconds": seconds}, open(sys.argv[2], "w"))
"""


def noise(rng: np.random.Generator, length: int) -> Values:
    return np.exp(rng.uniform(0.01, 0.05) * rng.standard_normal(length))


def steps(rng: np.random.Generator, length: int) -> tuple[Values, list[int]]:
    """One to three steps of 3 to 12 % up or down, at least 8 results apart."""
    places = [int(place) for place in np.sort(rng.choice(np.arange(8, length - 8), rng.integers(1, 4), replace=False))]
    places = [place for number, place in enumerate(places) if not number or place - places[number - 1] >= 8]
    levels = np.ones(length)
    for place in places:
        levels[place:] *= 1 + rng.choice([-1, 1]) * rng.uniform(0.03, 0.12)
    return levels * noise(rng, length), places


def drift(rng: np.random.Generator, length: int) -> tuple[Values, list[int]]:
    """A straight drift by 5 to 30 % over the history."""
    return np.linspace(1, 1 + rng.uniform(0.05, 0.3), length) * noise(rng, length), []


def outliers(rng: np.random.Generator, length: int) -> tuple[Values, list[int]]:
    """3 to 8 % of the results are 20 to 150 % slower."""
    is_outlier = rng.random(length) < rng.uniform(0.03, 0.08)
    return np.where(is_outlier, rng.uniform(1.2, 2.5, length), 1.0) * noise(rng, length), []


def two_states(rng: np.random.Generator, length: int) -> tuple[Values, list[int]]:
    """A machine with two states that are 8 to 30 % apart, independent or for some results in a row."""
    stay = rng.choice([0.5, 0.7, 0.85])
    state = [0]
    for _ in range(length - 1):
        state.append(state[-1] if rng.random() < stay else 1 - state[-1])
    quiet = np.exp(0.01 * rng.standard_normal(length))
    return (1 + rng.uniform(0.08, 0.3) * np.array(state)) * quiet, []


KINDS: dict[str, Callable[[np.random.Generator, int], tuple[Values, list[int]]]] = {
    "steps": steps,
    "drift": drift,
    "outliers": outliers,
    "two states": two_states,
}


def histories(count: int, seed: int) -> list[dict[str, Any]]:
    """Return `count` histories of each kind in turn; a machine swap has two series, one for each class."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        kind = [*KINDS, "machine swaps"][number % 5]
        length = int(rng.integers(20, 201))
        if kind != "machine swaps":
            values, places = KINDS[kind](rng, length)
            made.append({"kind": kind, "series": [list(100 * values)], "changes": [places], "mixed": None})
            continue
        is_other = np.arange(length) % (2 * int(rng.integers(5, 30))) >= 5  # the other class runs for a while, and back
        first, places = steps(rng, length) if rng.random() < 0.5 else (noise(rng, length), [])
        second = rng.uniform(1.1, 1.5) * noise(rng, length)
        mixed = np.where(is_other, second, first)
        own = [int(np.sum(~is_other[:place])) for place in places]
        classes = [list(100 * mixed[~is_other]), list(100 * mixed[is_other])]
        made.append({"kind": kind, "series": classes, "changes": [own, []], "mixed": list(100 * mixed)})
    return made


def scored(truth: list[int], answer: list[int], tally: dict[str, int], length: int) -> None:
    """Count found and missed changes, false ones, and series with a false one. A change near the ends cannot count."""
    left = list(answer)
    for place in truth:
        near = [one for one in left if abs(one - place) <= NEAR]
        tally["true"] += 1
        if near:
            tally["found"] += 1
            left.remove(min(near, key=lambda one: abs(one - place)))
    tally["false"] += len(left)
    tally["series"] += 1
    tally["series with a false change"] += bool(left)


def tallies(made: list[dict[str, Any]], answers: list[list[list[int]]]) -> dict[str, dict[str, int]]:
    results: dict[str, dict[str, int]] = {}
    for history, answer in zip(made, answers, strict=True):
        tally = results.setdefault(
            history["kind"], dict.fromkeys(("series", "true", "found", "false", "series with a false change"), 0)
        )
        for truth, found, values in zip(history["changes"], answer, history["series"], strict=True):
            scored(truth, found, tally, len(values))
    return results


def ours(values: list[float]) -> list[int]:
    return [change.index for change in segmentation(values, rate=RATE, min_effect=EFFECT).changes]


def otava(python: str, series: list[list[float]], **options: float) -> tuple[list[list[int]], list[float]]:
    """Return Otava's change points of each series, and its time for each."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder, "request.json"), Path(folder, "answer.json")
        request.write_text(json.dumps({"series": series, "options": options}))
        subprocess.run([python, "-c", OTAVA, str(request), str(answer)], check=True)
        found = json.loads(answer.read_text())
    return found["changes"], found["seconds"]


def of_otava(python: str, made: list[dict[str, Any]], **options: float) -> dict[str, Any]:
    flat = [values for history in made for values in history["series"]]
    answers, seconds = otava(python, flat, **options)
    stream = iter(answers)
    by_history = [[next(stream) for _ in history["series"]] for history in made]
    swaps = [history for history in made if history["mixed"] is not None]
    mixed, _ = otava(python, [history["mixed"] for history in swaps], **options)
    return {
        "kinds": tallies(made, by_history),
        "mixed machine swaps, changes reported": sum(map(len, mixed)),
        "mixed machine swaps, series with a change": sum(map(bool, mixed)),
        "seconds": sum(seconds),
    }


def speed(python: str | None, seed: int) -> dict[str, float]:
    """Return the processor seconds for one history of 10,000 results with ten steps: the best of three."""
    rng = np.random.default_rng(seed)
    levels = np.repeat(1 + 0.05 * rng.permutation(10), LENGTH_OF_SPEED // 10)
    values = list(100 * levels * np.exp(0.02 * rng.standard_normal(LENGTH_OF_SPEED)))
    times = []
    for _ in range(3):
        begin = time.process_time()
        ours(values)
        times.append(time.process_time() - begin)
    result = {"results": LENGTH_OF_SPEED, "flatout_s": min(times)}
    if python is not None:
        _, seconds = otava(python, [values] * 3)
        result |= {"otava_s": min(seconds), "ratio": min(seconds) / min(times)}
    return result


UNCHANGED: dict[str, Callable[[np.random.Generator, int], Values]] = {
    "normal": lambda rng, length: 0.03 * rng.standard_normal(length),
    "long tails (t, 2.5)": lambda rng, length: 0.03 * rng.standard_t(2.5, length),
    "skewed (lognormal)": lambda rng, length: 0.05 * np.exp(rng.standard_normal(length)),
    "5 % outliers": lambda rng, length: (
        0.03 * rng.standard_normal(length) + (rng.random(length) < 0.05) * rng.uniform(0.2, 1, length)
    ),
    "two states that overlap": lambda rng, length: (
        0.03 * rng.standard_normal(length) + 0.1 * (rng.random(length) < 0.3)
    ),
    "neighbours correlated by 0.3": lambda rng, length: autoregressive(rng, length, 0.3),
    "neighbours correlated by 0.6": lambda rng, length: autoregressive(rng, length, 0.6),
}


def autoregressive(rng: np.random.Generator, length: int, correlation: float) -> Values:
    values = 0.03 * rng.standard_normal(length)
    for index in range(1, length):
        values[index] += correlation * values[index - 1]
    return values


def false_alarms(count: int, seed: int) -> dict[str, dict[str, float]]:
    """Return the share of series without a change that are given one, at two rates."""
    rng = np.random.default_rng(seed)
    shares: dict[str, dict[str, float]] = {}
    for kind, draw in UNCHANGED.items():
        for length in (10, 30, 100, 300):
            for rate in (0.05, 0.01):
                drawn = (list(100 * np.exp(draw(rng, length))) for _ in range(count))
                alarms = sum(bool(segmentation(values, rate=rate, min_effect=EFFECT).changes) for values in drawn)
                shares.setdefault(kind, {})[f"{length} results, rate {rate}"] = alarms / count
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=int, default=500, help="number of histories")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--unchanged", type=int, default=0, help="series without a change, for the rate of false alarms"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--otava-python", help="Python of an environment with apache-otava==0.8.0")
    given = parser.parse_args()
    made = histories(given.series, given.seed)
    begin = time.process_time()
    answers = [[ours(values) for values in history["series"]] for history in made]
    result: dict[str, Any] = {
        "histories": given.series,
        "seed": given.seed,
        "rate": RATE,
        "near": NEAR,
        "flatout": {"kinds": tallies(made, answers), "seconds": time.process_time() - begin},
    }
    if given.otava_python:
        result["otava, its defaults"] = of_otava(given.otava_python, made)
        result["otava, p below 0.00001"] = of_otava(given.otava_python, made, max_pvalue=1e-5)
        result["otava, p below 0.00001, changes from 1 %"] = of_otava(
            given.otava_python, made, max_pvalue=1e-5, min_magnitude=EFFECT
        )
    if given.unchanged:
        result["false alarms"] = false_alarms(given.unchanged, given.seed)
    result["speed"] = speed(given.otava_python, given.seed)
    text = json.dumps(result, indent=1)
    if given.out is not None:
        given.out.write_text(text + "\n")
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
