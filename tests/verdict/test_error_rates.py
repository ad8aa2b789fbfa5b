"""A small simulation of what `benchmarks/verdict_error_rates.py` measures at length."""

from __future__ import annotations

import msgspec
import numpy as np
from tests.verdict.trials import noisy_pairs, trial

from flatout.verdict.interim import DEFAULT_INTERIM, InterimPlan
from flatout.verdict.judge import judge
from flatout.verdict.noise import noise_floor
from flatout.verdict.screening import round_order, screen

TUNINGS = 600
# Far above 1 %, so that only the levels of the looks keep the error rate, not the least effect.
SD = 0.06

NOT_CORRECTED = InterimPlan(
    analyses=tuple(msgspec.structs.replace(analysis, level=0.05) for analysis in DEFAULT_INTERIM.analyses)
)


def false_positives(interim: InterimPlan) -> float:
    false = 0
    for tuning in range(TUNINGS):
        rng = np.random.default_rng([7, tuning])
        floor = noise_floor([trial(i, step_s=[float(np.exp(rng.normal(0, SD / 2**0.5)))]) for i in range(6)])
        false += judge(noisy_pairs(rng, 20, sd=SD), interim=interim, floor=floor).verdict in ("better", "worse")
    return false / TUNINGS


def test_identical_arms_are_told_apart_in_at_most_five_percent() -> None:
    assert false_positives(DEFAULT_INTERIM) <= 0.05


def test_the_same_looks_at_the_usual_level_each_would_be_wrong_too_often() -> None:
    assert false_positives(NOT_CORRECTED) > 0.08


def test_three_percent_are_found_in_at_most_eight_pairs_on_average() -> None:
    verdicts = [judge(noisy_pairs(np.random.default_rng([8, i]), 20, effect=0.03)) for i in range(300)]
    assert sum(v.verdict == "better" for v in verdicts) >= 0.99 * len(verdicts)
    assert sum(v.num_pairs for v in verdicts) / len(verdicts) <= 8


def test_equivalence_is_claimed_in_at_most_five_percent_where_the_effect_is_one_percent() -> None:
    verdicts = [judge(noisy_pairs(np.random.default_rng([9, i]), 20, effect=0.01, sd=0.01)) for i in range(400)]
    assert sum(v.verdict == "equivalent" for v in verdicts) <= 0.05 * len(verdicts)


def test_the_best_of_fifty_identical_candidates_is_seldom_confirmed() -> None:
    better = looked_better = 0
    for tuning in range(200):
        rng = np.random.default_rng([10, tuning])
        order = round_order([f"candidate {i}" for i in range(50)])
        trials = [trial(i, arm, [float(np.exp(rng.normal(0, 0.012)))]) for i, arm in enumerate(order)]
        winner = screen(trials)[0]
        looked_better += winner.speedup > 1.01
        better += judge(noisy_pairs(rng, 20)).verdict == "better"
    assert looked_better > 180
    assert better <= 10
