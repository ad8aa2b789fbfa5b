"""How often verdicts from all trials are wrong, and how soon they are right, on machines of many kinds.

    python benchmarks/verdict_scenarios.py [--tunings 4000] [--processes 1] [--out FILE]

A tuning has four baselines (noise floor), the candidates that are screened, another baseline, and then fresh trials of
the candidate that screened best, with baselines between them. `SCENARIOS` names what its machine does to the log cost
of a trial. Each tuning is judged by the rules of `flatout.verdict.analyses` and given up by those of
`flatout.verdict.prospect`, many tunings at once. Seeds are fixed. Minutes on one core. Jobs whose windows hold periodic
work: `verdict_windows.py`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.verdict.analyses import (
    ANALYSES,
    BETTER,
    EQUIVALENT,
    UNDECIDED,
    WORSE,
    Fitted,
    analyse,
    worth_more,
)
from flatout.verdict.arms import MIN_EFFECT
from flatout.verdict.arrangement import Arrangement
from flatout.verdict.prospect import chances
from flatout.verdict.quoted import claim_of, quoted

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Generator = np.random.Generator
Noise = Callable[[Generator, int, Flags], Floats]

NUM_FLOOR = 4
GIVEN_UP = 3  # next to the claims of `analyses`


# ---- what machines do to the log cost of a trial ----


def white(sd: float, candidate_sd: float | None = None) -> Noise:
    """Independent noise; the candidate's may differ."""

    def noise(rng: Generator, tunings: int, is_candidate: Flags) -> Floats:
        sds = np.where(is_candidate, sd if candidate_sd is None else candidate_sd, sd)
        return rng.normal(0, 1, (tunings, len(is_candidate))) * sds

    return noise


def heavy_tails(sd: float) -> Noise:
    """Student's t with 3 degrees of freedom."""
    return lambda rng, tunings, is_candidate: sd * rng.standard_t(3, (tunings, len(is_candidate))) / math.sqrt(3)


def plus(sd: float, shift: Callable[[Generator, int, int], Floats]) -> Noise:
    """White noise and a shift, by tunings and trials."""

    def noise(rng: Generator, tunings: int, is_candidate: Flags) -> Floats:
        return white(sd)(rng, tunings, is_candidate) + shift(rng, tunings, len(is_candidate))

    return noise


def drift(per_trial: float) -> Noise:
    return plus(0.01, lambda rng, tunings, trials: per_trial * np.arange(trials)[None, :])


def walk(sd: float) -> Noise:
    return plus(0.01, lambda rng, tunings, trials: rng.normal(0, sd, (tunings, trials)).cumsum(axis=1))


def wandering(sd: float, correlation: float) -> Noise:
    """A first-order autoregressive process."""

    def shift(rng: Generator, tunings: int, trials: int) -> Floats:
        fresh = rng.normal(0, sd, (tunings, trials))
        result = fresh.copy()
        for place in range(1, trials):
            result[:, place] = correlation * result[:, place - 1] + math.sqrt(1 - correlation**2) * fresh[:, place]
        return result

    return plus(0.01, shift)


def spikes(share: float, factor: float) -> Noise:
    return plus(0.01, lambda rng, tunings, trials: math.log(factor) * (rng.random((tunings, trials)) < share))


def two_states(factor: float, share: float, stay: float = 0.0) -> Noise:
    """Some trials are slower by a factor; with probability `stay` a trial has the state of the one before."""

    def shift(rng: Generator, tunings: int, trials: int) -> Floats:
        is_slow = rng.random((tunings, trials)) < share
        stays = rng.random((tunings, trials)) < stay
        for place in range(1, trials):
            is_slow[:, place] = np.where(stays[:, place], is_slow[:, place - 1], is_slow[:, place])
        return math.log(factor) * is_slow

    return plus(0.01, shift)


def warming(first: float, trials_to_fall: float) -> Noise:
    return plus(0.01, lambda rng, tunings, trials: first * np.exp(-np.arange(trials) / trials_to_fall)[None, :])


def slow_first(factor: float) -> Noise:
    return plus(0.01, lambda rng, tunings, trials: math.log(factor) * (np.arange(trials) == 0)[None, :])


def jump(size: float) -> Noise:
    """One change of level, up or down, somewhere between the seventh and the twentieth trial."""

    def shift(rng: Generator, tunings: int, trials: int) -> Floats:
        sign = rng.choice([-size, size], tunings)[:, None]
        return sign * (np.arange(trials) >= rng.integers(6, 20, tunings)[:, None])

    return plus(0.01, shift)


SCENARIOS: dict[str, Noise] = {
    **{f"white {100 * sd:g} %": white(sd) for sd in (0.01, 0.03, 0.05, 0.10, 0.20)},
    "heavy tails 3 %": heavy_tails(0.03),
    "drift 0.3 % per trial": drift(0.003),
    "drift 3 % per trial": drift(0.03),
    "walk 1 % per trial": walk(0.01),
    "walk 3 % per trial": walk(0.03),
    "wandering 3 %": wandering(0.03, 0.8),
    "spikes 25 % in 5 % of trials": spikes(0.05, 1.25),
    "spikes 100 % in 5 % of trials": spikes(0.05, 2.0),
    "two states 15 %": two_states(1.15, 0.3),
    "two states 100 %": two_states(2.0, 0.3),
    "two states 15 %, sticky": two_states(1.15, 0.3, stay=0.75),
    "warming 5 %": warming(0.05, 1.5),
    "warming 20 %": warming(0.2, 1.5),
    "warming 20 %, slow": warming(0.2, 4.0),
    "cooling 10 %": warming(-0.1, 3.0),
    "first trial 30 % slower": slow_first(1.3),
    "first trial twice as slow": slow_first(2.0),
    "jump 10 %": jump(0.1),
    "jump 30 %": jump(0.3),
    "candidate 3 %, baseline 1 %": white(0.01, 0.03),
    "candidate 9 %, baseline 3 %": white(0.03, 0.09),
    "candidate 15 %, baseline 3 %": white(0.03, 0.15),
    "candidate 1 %, baseline 3 %": white(0.03, 0.01),
}


# ---- tunings ----


class Tunings(msgspec.Struct, frozen=True, kw_only=True):
    """Many tunings with one order of trials; each goes on with the candidate that screened best."""

    order: str  # A: baseline, B: a candidate
    num_screened: int
    logs: Floats  # log costs; (tunings, trials)
    chosen: NDArray[np.int64]  # place of the trial by which the candidate was chosen; (tunings,)
    effects: Floats  # of the candidate that was chosen: log speedup; (tunings,)

    def arrangement(self, chosen: int) -> tuple[list[int], Arrangement]:
        """Return the places of the trials of both arms, and their arrangement, for one chosen candidate."""
        screened = range(NUM_FLOOR, NUM_FLOOR + self.num_screened)
        places = [place for place in range(len(self.order)) if place == chosen or place not in screened]
        is_candidate = tuple(self.order[place] == "B" for place in places)
        is_choosing = [place == chosen and self.num_screened > 1 for place in places]
        return places, Arrangement(
            positions=tuple(places),
            is_candidate=is_candidate,
            is_fresh=tuple(its and not chose for its, chose in zip(is_candidate, is_choosing, strict=True)),
            blocks=(0,) * len(places),
        )


def make_tunings(
    noise: Noise,
    speedup: float,
    *,
    tunings: int,
    num_screened: int = 3,
    are_all_good: bool = False,
    num_fresh: int = ANALYSES[-1].num_fresh,
    seed: int = 7,
) -> Tunings:
    """Return tunings in which one of the candidates (or each) has the speedup, and the others none."""
    rng = np.random.default_rng(seed)
    order = "A" * NUM_FLOOR + "B" * num_screened + "A" + "BA" * num_fresh
    is_candidate = np.array([arm == "B" for arm in order])
    screened = np.arange(NUM_FLOOR, NUM_FLOOR + num_screened)
    logs = noise(rng, tunings, is_candidate)
    gains = np.zeros(logs.shape)
    if are_all_good:
        gains[:, screened] = math.log(speedup)
    else:
        gains[np.arange(tunings), rng.choice(screened, tunings)] = math.log(speedup)
    chosen = screened[(logs - gains)[:, screened].argmin(axis=1)]
    effects = gains[np.arange(tunings), chosen]
    is_fresh = is_candidate & ~np.isin(np.arange(len(order)), screened)
    return Tunings(
        order=order,
        num_screened=num_screened,
        logs=logs - gains - is_fresh * effects[:, None],
        chosen=chosen,
        effects=effects,
    )


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each tuning; arrays have the shape (tunings,)."""

    claims: NDArray[np.int64]  # as in `analyses`, or GIVEN_UP
    num_trials: NDArray[np.int64]  # of the whole tuning until then
    num_fresh: NDArray[np.int64]
    estimates: Floats
    low: Floats
    high: Floats
    quotes: Floats  # NaN: not called better, or not asked for


def judge_tunings(
    tunings: Tunings, *, gives_up: bool = True, with_quotes: bool = False, min_effect: float = MIN_EFFECT
) -> Judged:
    """Judge each tuning at each analysis, until it is decided or given up."""
    count = len(tunings.logs)
    judged = Judged(
        claims=np.zeros(count, dtype=np.int64),
        num_trials=np.full(count, len(tunings.order)),
        num_fresh=np.full(count, ANALYSES[-1].num_fresh),
        **{name: np.full(count, np.nan) for name in ("estimates", "low", "high", "quotes")},
    )
    for chosen in np.unique(tunings.chosen):
        places, arrangement = tunings.arrangement(int(chosen))
        _judge_rows(
            tunings,
            judged,
            np.flatnonzero(tunings.chosen == chosen),
            places,
            arrangement,
            gives_up,
            with_quotes,
            min_effect,
        )
    return judged


def _judge_rows(
    tunings: Tunings,
    judged: Judged,
    rows: NDArray[np.int64],
    places: list[int],
    arrangement: Arrangement,
    gives_up: bool,
    with_quotes: bool,
    min_effect: float,
) -> None:
    num_screened = tunings.num_screened
    made: list[Fitted] = []
    for analysis in ANALYSES:
        if analysis.num_fresh > arrangement.num_fresh or not len(rows):
            return
        end = arrangement.end_of_fresh(analysis.num_fresh)
        logs, so_far = tunings.logs[np.ix_(rows, places[:end])], arrangement.first(end)
        fitted = analyse(logs, so_far, analysis, num_screened=num_screened, min_effect=min_effect)
        if fitted is None:
            continue
        made.append(fitted)
        judged.estimates[rows], judged.low[rows], judged.high[rows] = fitted.effect.estimate, fitted.low, fitted.high
        claims = fitted.claims.copy()
        if gives_up and analysis is not ANALYSES[-1]:
            forecasts = chances(
                logs, so_far, num_run=analysis.num_fresh, num_screened=num_screened, min_effect=min_effect
            )
            is_hopeless = forecasts[-1].better < worth_more(analysis.num_fresh)
            claims = np.where((claims == UNDECIDED) & is_hopeless, GIVEN_UP, claims)
        for place in np.flatnonzero(claims == BETTER) if with_quotes else ():
            claim = claim_of(
                made,
                so_far,
                num_run=analysis.num_fresh,
                num_screened=num_screened,
                min_effect=min_effect,
                tuning=int(place),
            )
            judged.quotes[rows[place]] = quoted(claim)
        is_done = claims != UNDECIDED
        judged.claims[rows[is_done]] = claims[is_done]
        judged.num_trials[rows[is_done]] = places[end - 1] + 1
        judged.num_fresh[rows[is_done]] = analysis.num_fresh
        rows = rows[~is_done]


# ---- what is measured ----


def summary(tunings: Tunings, judged: Judged) -> dict[str, Any]:
    """Return the shares of the verdicts, and what they cost; `num_trials` are of the whole tuning."""
    effects, claims = tunings.effects, judged.claims
    is_true = ((claims == BETTER) & (effects > 0)) | ((claims == WORSE) & (effects < 0))
    is_false = np.isin(claims, (BETTER, WORSE)) & ~is_true
    is_equivalent = claims == EQUIVALENT
    to_claim = np.median(np.where(is_true, judged.num_trials, np.inf))
    covers = (judged.low <= effects) & (effects <= judged.high)
    result = {
        "false_claims": float(is_false.mean()),
        "false_equivalent": float((is_equivalent & (np.abs(effects) >= math.log1p(MIN_EFFECT))).mean()),
        "power": float(is_true.mean()),
        "equivalent": float(is_equivalent.mean()),
        "given_up": float((claims == GIVEN_UP).mean()),
        "coverage": float(covers.mean()),
        "median_trials_to_claim": None if math.isinf(to_claim) else float(to_claim),
        "median_trials": float(np.median(judged.num_trials)),
        "mean_trials": float(judged.num_trials.mean()),
        "median_fresh": float(np.median(judged.num_fresh)),
        "fresh_9_of_10": float(np.quantile(judged.num_fresh, 0.9)),
    }
    is_quoted = ~np.isnan(judged.quotes) & is_true
    if is_quoted.any():
        errors = {
            "mean": judged.estimates[is_quoted] - effects[is_quoted],
            "quoted": judged.quotes[is_quoted] - effects[is_quoted],
        }
        result["bias_points"] = {name: 100 * float(error.mean()) for name, error in errors.items()}
        result["rmse_points"] = {name: 100 * float(np.sqrt((error**2).mean())) for name, error in errors.items()}
    return {name: _rounded(value) for name, value in result.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the results: how its tunings are made and judged."""

    part: str
    name: str
    scenario: str
    speedup: float
    tunings: int
    made: dict[str, Any] = {}  # further arguments of `make_tunings`
    judged: dict[str, Any] = {}  # and of `judge_tunings`

    def run(self) -> dict[str, Any]:
        tunings = make_tunings(SCENARIOS[self.scenario], self.speedup, tunings=self.tunings, **self.made)
        return summary(tunings, judge_tunings(tunings, **self.judged))


def cells(count: int) -> list[Cell]:
    result = []
    for name, speedup in itertools.product(SCENARIOS, (1.0, 1.03, 1.1, 1.3, 2.0)):
        label = f"{name}, {speedup:g}x"
        result.append(Cell(part="tunings", name=label, scenario=name, speedup=speedup, tunings=count))
    for name in SCENARIOS:
        judged = {"gives_up": False}
        result.append(Cell(part="never_given_up", name=name, scenario=name, speedup=1.0, tunings=count, judged=judged))
    selected = ("white 3 %", "two states 15 %", "candidate 9 %, baseline 3 %")
    for number, name in itertools.product((1, 3, 8, 20), selected):
        label, made = f"{name}, {number} screened", {"num_screened": number}
        result.append(Cell(part="screened", name=label, scenario=name, speedup=1.0, tunings=count, made=made))
    rows = ((3, 1.03), (3, 1.1), (5, 1.1), (5, 1.3), (10, 1.1), (10, 1.3), (10, 2.0))
    for (percent, speedup), are_all_good in itertools.product(rows, (False, True)):
        result.append(
            Cell(
                part="quoted",
                name=f"white {percent} %, {speedup:g}x" + (", all candidates" if are_all_good else ""),
                scenario=f"white {percent} %",
                speedup=speedup,
                tunings=count // 4,
                made={"are_all_good": are_all_good},
                judged={"with_quotes": True},
            )
        )
    for speedup, margin in ((1.0, 0.01), (1.01, 0.01), (1.0, 0.03), (1.03, 0.03)):
        result.append(
            Cell(
                part="equivalent",
                name=f"white 1 %, {speedup:g}x, within {margin:.0%}",
                scenario="white 1 %",
                speedup=speedup,
                tunings=count,
                made={"num_screened": 1},
                judged={"gives_up": False, "min_effect": margin},
            )
        )
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=4000)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    todo = cells(arguments.tunings)
    results: dict[str, Any] = {cell.part: {} for cell in todo}
    with ProcessPoolExecutor(arguments.processes) as pool:
        for cell, row in zip(todo, pool.map(Cell.run, todo), strict=True):
            results[cell.part][cell.name] = row
            print(f"{cell.part}: {cell.name}: {json.dumps(row)}", file=sys.stderr, flush=True)
    document = {
        "conditions": {
            "tunings": arguments.tunings,
            "analyses": msgspec.to_builtins(ANALYSES),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "took_s": round(time.monotonic() - began, 1),
        },
        **results,
    }
    text = json.dumps(document, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
