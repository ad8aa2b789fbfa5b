"""How often verdicts are wrong, and how soon they are right, on simulated trials.

    python benchmarks/verdict_error_rates.py [--tunings 4000] [--out results.json]

The model of issue 4: the log of a step's time is that of the job, plus a run's own offset (sd 1.2 %), plus noise of the
step (sd 2 %), plus a drift of 3 % per 1,000 steps that goes on through all trials of a tuning (warm-ups included); 2 %
of the steps are spikes, 1.5 to 5 times as long. Trials have 100 settled steps after 20 of warm-up, pairs alternate
AB BA. Each tuning is judged by `flatout.verdict` itself, at every analysis. The other procedures judge the same trials.
Seeds are fixed. Minutes on one core. How far quoted gains are from the truth: `quoted_gains.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import stats

from flatout.records.trial import BASELINE, Pair, TrialResult
from flatout.records.verdict import NoiseFloor, Verdict
from flatout.tune.floor import NUM_FLOOR_TRIALS
from flatout.verdict.interim import DEFAULT_INTERIM
from flatout.verdict.judge import is_worth_more_pairs, judge
from flatout.verdict.noise import noise_floor
from flatout.verdict.screening import keep_best, round_order, screen

Floats = NDArray[np.float64]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """How trials are made. Spreads are of logarithms."""

    run_sd: float = 0.012
    candidate_run_sd: float | None = None  # None: as the baseline
    run_shape: str = (
        "normal"  # normal | heavy (Student's t, 3 degrees of freedom) | two-valued | wandering (AR(1), 0.8)
    )
    step_sd: float = 0.02
    spike_share: float = 0.02
    drift_per_step: float = 0.03 / 1000
    stall_every: int = 0  # a stalling loader: each so many steps take three times as long
    num_steps: int = 100
    num_warmup: int = 20
    effect: float = 0.0  # the candidate is this much faster: 0.03 is 3 %
    void_share: float = 0.0  # of pairs in which a GPU is throttled, and is slow


class Simulated:
    """One job in a noisy place: gives its trials one after the other."""

    def __init__(self, model: Model, rng: np.random.Generator) -> None:
        self.model, self.rng = model, rng
        self.index = 0
        self.wander = rng.normal()

    def trial(self, arm: str, *, num_steps: int | None = None, effect: float = 0.0, slow: bool = False) -> TrialResult:
        model, rng = self.model, self.rng
        num_steps = num_steps or model.num_steps
        sd = model.run_sd if arm == BASELINE or model.candidate_run_sd is None else model.candidate_run_sd
        clock = self.index * (model.num_warmup + model.num_steps) + model.num_warmup + np.arange(num_steps)
        logs = rng.normal(sd * self._offset(), model.step_sd, num_steps) + model.drift_per_step * clock
        steps = 0.1 * np.exp(logs) / (1 + effect)
        if model.stall_every:
            steps[:: model.stall_every] *= 3
        spikes = rng.random(num_steps) < model.spike_share
        steps[spikes] *= rng.uniform(1.5, 5, int(spikes.sum()))
        self.index += 1
        return TrialResult(
            index=self.index, arm=arm, outcome="completed", step_s=tuple((steps * (1.3 if slow else 1)).tolist())
        )

    def _offset(self) -> float:
        match self.model.run_shape:
            case "heavy":
                return float(self.rng.standard_t(3) / math.sqrt(3))
            case "two-valued":
                return float(self.rng.choice([-1.0, 1.0]))
            case "wandering":
                self.wander = 0.8 * self.wander + 0.6 * self.rng.normal()
                return float(self.wander)
        return float(self.rng.normal())

    def pairs(self, count: int) -> list[Pair]:
        pairs = []
        for position in range(count):
            void = self.rng.random() < self.model.void_share
            trials = {}
            for arm in (BASELINE, "candidate") if position % 2 == 0 else ("candidate", BASELINE):
                effect = self.model.effect if arm != BASELINE else 0.0
                trials[arm] = self.trial(arm, effect=effect, slow=void and arm != BASELINE)
            reason = "throttled" if void else None
            pairs.append(Pair(baseline=trials[BASELINE], candidate=trials["candidate"], invalid_reason=reason))
        return pairs


def rng_of(*keys: int) -> np.random.Generator:
    return np.random.default_rng([20240611, *keys])


def flatout_verdicts(model: Model, tunings: int, key: int, *, with_floor: bool, num_pairs: int = 20) -> list[Verdict]:
    verdicts = []
    for tuning in range(tunings):
        job = Simulated(model, rng_of(key, tuning))
        floor: NoiseFloor | None = None
        if with_floor:
            floor = noise_floor([job.trial(BASELINE) for _ in range(NUM_FLOOR_TRIALS)])
        verdicts.append(judge(job.pairs(num_pairs), floor=floor))
    return verdicts


def stopped_verdicts(model: Model, tunings: int, key: int) -> list[Verdict]:
    """As the loop asks: at each look, until it is decided or no longer likely to become better."""
    verdicts = []
    for tuning in range(tunings):
        job = Simulated(model, rng_of(key, tuning))
        floor = noise_floor([job.trial(BASELINE) for _ in range(NUM_FLOOR_TRIALS)])
        pairs = job.pairs(DEFAULT_INTERIM.max_pairs)
        verdict = judge(pairs[:0], floor=floor)
        while is_worth_more_pairs(verdict):
            verdict = judge(pairs[: verdict.next_analysis], floor=floor)
        verdicts.append(verdict)
    return verdicts


def summary(verdicts: list[Verdict], true_speedup: float) -> dict[str, Any]:
    total = len(verdicts)
    names = [verdict.verdict for verdict in verdicts]
    counts = {name: names.count(name) / total for name in ("better", "worse", "equivalent", "undecided")}
    missed = sum(v.interval is not None and not v.interval[0] <= true_speedup <= v.interval[1] for v in verdicts)
    return {
        "tunings": total,
        **counts,
        "better_or_worse": counts["better"] + counts["worse"],
        "standard_error": math.sqrt(max(counts["better"] + counts["worse"], 1 / total) / total),
        "interval_misses_truth": missed / total,
        "mean_pairs": sum(v.num_pairs for v in verdicts) / total,
        "mean_speedup_when_better": mean_or_none([v.mean_speedup or 1 for v in verdicts if v.verdict == "better"]),
    }


def mean_or_none(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


# ---- other procedures, on the log ratios of the same kind of trials ----


def plain_log_ratios(model: Model, tunings: int, key: int, num_pairs: int) -> Floats:
    """Median steps' log ratios, order AB BA; shape (tunings, num_pairs)."""
    result = np.empty((tunings, num_pairs))
    for tuning in range(tunings):
        for position, pair in enumerate(Simulated(model, rng_of(key, tuning)).pairs(num_pairs)):
            result[tuning, position] = math.log(np.median(pair.baseline.step_s) / np.median(pair.candidate.step_s))
    return result


def t_excludes_zero(ratios: Floats, level: float = 0.05) -> NDArray[np.bool_]:
    return np.asarray(stats.ttest_1samp(ratios, 0, axis=1).pvalue < level)


def bootstrap_excludes_zero(ratios: Floats, rng: np.random.Generator, resamples: int = 1000) -> NDArray[np.bool_]:
    count = ratios.shape[1]
    excludes = np.zeros(len(ratios), dtype=np.bool_)
    for row, values in enumerate(ratios):
        means = values[rng.integers(0, count, (resamples, count))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        excludes[row] = low > 0 or high < 0
    return excludes


def first_claim(ratios: Floats, counts: list[int], test: Callable[[Floats], NDArray[np.bool_]]) -> tuple[float, float]:
    """How often any look claims, and the pairs used on average."""
    claimed = np.zeros(len(ratios), dtype=np.bool_)
    used = np.full(len(ratios), counts[-1])
    for count in counts:
        now = test(ratios[:, :count]) & ~claimed
        used[now] = count
        claimed |= now
    return float(claimed.mean()), float(used.mean())


def others(tunings: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    rng = rng_of(999)
    for label, model, key in (("identical", Model(), 50), ("3 % faster", Model(effect=0.03), 51)):
        ratios = plain_log_ratios(model, tunings, key, 20)
        rows: dict[str, Any] = {
            "one trial each, faster one wins": {"better": float((ratios[:, 0] > 0).mean())},
            "one trial each, more than 1 % faster wins": {"better": float((ratios[:, 0] > math.log(1.01)).mean())},
        }
        for count in (4, 6, 10):
            claimed = bootstrap_excludes_zero(ratios[:, :count], rng).mean()
            rows[f"percentile bootstrap, {count} pairs"] = {"claims": float(claimed)}
        for count in (6, 10):
            rows[f"paired t at 95 %, {count} pairs"] = {"claims": float(t_excludes_zero(ratios[:, :count]).mean())}
        for name, counts in (
            ("paired t at 95 % after each pair from 3 on", list(range(3, 21))),
            ("paired t at 95 % at each of our looks, not corrected", [4, 6, 8, 12, 20]),
        ):
            claims, pairs = first_claim(ratios, counts, t_excludes_zero)
            rows[name] = {"claims": claims, "mean_pairs": pairs}
        claims, pairs = first_claim(ratios, [6, 12, 20], lambda r: t_excludes_zero(r, 0.05 / 3))
        rows["paired t at 98.3 % at 6, 12, 20 pairs"] = {"claims": claims, "mean_pairs": pairs}
        result[label] = rows
    return result


# ---- the winner of many ----


def best_of_many(tunings: int, *, num_candidates: int = 50, screening_steps: int = 30) -> dict[str, Any]:
    """Successive halving of identical candidates, then the winner on fresh pairs; and what less careful ways claim."""
    arms = [f"candidate {number}" for number in range(num_candidates)]
    claims, verdicts, looks_good, screened_speedups, argmax = 0, [], 0, [], []
    for tuning in range(tunings):
        job = Simulated(Model(), rng_of(60, tuning))
        floor = noise_floor([job.trial(BASELINE) for _ in range(NUM_FLOOR_TRIALS)])
        trials: list[TrialResult] = []
        left, is_reversed = arms, False
        while len(left) > 1:
            order = round_order(left, is_reversed=is_reversed)
            trials += [job.trial(arm, num_steps=screening_steps) for arm in order]
            ranking = [one for one in screen(trials) if one.arm in left]
            if len(left) == num_candidates:
                argmax.append(ranking[0].speedup - 1)
            left = [one.arm for one in keep_best(ranking)]
            is_reversed = not is_reversed
        winner = ranking[0]
        screened_speedups.append(winner.speedup - 1)
        looks_good += winner.speedup > 1.01
        verdict = judge(job.pairs(20), floor=floor, fresh_after=trials[-1].index)
        verdicts.append(verdict)
        claims += verdict.verdict == "better"
    # All 50 given 6 pairs each, the best claimed by its own paired t (from normal log ratios of the same spread).
    spread = math.sqrt(2 * (0.012**2 + math.pi / 2 * 0.02**2 / 100))
    ratios = rng_of(61).normal(0, spread, (tunings * num_candidates, 6))
    t_claims = (t_excludes_zero(ratios) & (ratios.mean(axis=1) > math.log(1.01))).reshape(tunings, num_candidates)
    return {
        "winner_claimed_better": claims / tunings,
        "standard_error": math.sqrt(max(claims, 1)) / tunings,
        "verdicts": summary(verdicts, 1.0),
        "for_comparison": {
            "winner_of_all_rounds_looks_more_than_1_percent_better": looks_good / tunings,
            "mean_gain_of_the_first_rounds_best": float(np.mean(argmax)),
            "mean_gain_of_the_winner_as_screened": float(np.mean(screened_speedups)),
            "any_of_50_claimed_by_its_own_6_pairs": float(t_claims.any(axis=1).mean()),
        },
    }


def measure(tunings: int, log: Callable[[str], None]) -> dict[str, Any]:
    identical = {
        "as in the issue": Model(),
        "run offsets with heavy tails (t, 3 df)": Model(run_shape="heavy"),
        "run offsets of two values": Model(run_shape="two-valued"),
        "run offsets that wander (AR(1), 0.8)": Model(run_shape="wandering"),
        "candidate three times as noisy": Model(candidate_run_sd=0.036),
        "candidate a third as noisy": Model(candidate_run_sd=0.004),
        "ten times the drift": Model(drift_per_step=0.03 / 100),
        "a stall at every eighth step": Model(stall_every=8),
        "a tenth of the pairs void": Model(void_share=0.1),
        "run offsets of two values, hardly any step noise": Model(run_shape="two-valued", step_sd=0.002),
        "hardly any run noise": Model(run_sd=0.001, step_sd=0.005),
        "20 steps a trial": Model(num_steps=20),
    }
    result: dict[str, Any] = {"identical": {}, "faster": {}}
    for key, (label, model) in enumerate(identical.items()):
        for with_floor in (False, True):
            name = label + (f", noise floor from {NUM_FLOOR_TRIALS} runs" if with_floor else "")
            count = tunings if key == 0 else tunings // 2
            verdicts = flatout_verdicts(model, count, 100 + key, with_floor=with_floor, num_pairs=24)
            result["identical"][name] = summary(verdicts, 1.0)
            log(f"{name}: {result['identical'][name]['better_or_worse']:.4f}")
    for key, effect in enumerate((0.01, 0.015, 0.02, 0.03, 0.05, 0.20)):
        for with_floor in (False, True):
            name = f"{100 * effect:g} %" + (f", noise floor from {NUM_FLOOR_TRIALS} runs" if with_floor else "")
            count = tunings if effect == 0.03 else tunings // 2
            verdicts = flatout_verdicts(Model(effect=effect), count, 200 + key, with_floor=with_floor)
            result["faster"][name] = summary(verdicts, 1 + effect)
            log(f"{name}: {result['faster'][name]['better']:.4f} in {result['faster'][name]['mean_pairs']:.2f} pairs")
    for key, effect in enumerate((1.0, 1.6)):  # many times the noise, but of very noisy runs
        name = f"{1 + effect:g} times as fast, 12 % run noise, noise floor from {NUM_FLOOR_TRIALS} runs"
        model = Model(run_sd=0.12, effect=effect)
        result["faster"][name] = summary(flatout_verdicts(model, tunings // 2, 300 + key, with_floor=True), 1 + effect)
        log(f"{name}: {result['faster'][name]['better']:.4f} in {result['faster'][name]['mean_pairs']:.2f} pairs")
    result["stopped_when_unlikely_to_become_better"] = {}
    for key, effect in ((100, 0.0), (202, 0.02), (203, 0.03)):
        stopped = summary(stopped_verdicts(Model(effect=effect), tunings // 2, key), 1 + effect)
        result["stopped_when_unlikely_to_become_better"][f"{100 * effect:g} %"] = stopped
        log(f"stopped early, {100 * effect:g} %: {stopped['better']:.4f} better in {stopped['mean_pairs']:.2f} pairs")
    result["best_of_50_identical"] = best_of_many(tunings)
    log(f"best of 50: {result['best_of_50_identical']['winner_claimed_better']:.4f}")
    result["other_procedures"] = others(tunings // 2)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tunings", type=int, default=4000)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    began = time.monotonic()
    results = measure(arguments.tunings, lambda line: print(line, file=sys.stderr, flush=True))
    document = {
        "conditions": {
            "tunings": arguments.tunings,
            "model": msgspec.to_builtins(Model()),
            "looks": msgspec.to_builtins(DEFAULT_INTERIM),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
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
