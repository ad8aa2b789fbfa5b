"""A slice of `benchmarks/verdict_scenarios.py`: how often verdicts from all trials are wrong, and how soon right."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.verdict_scenarios import SCENARIOS, judge_tunings, make_tunings, summary
from benchmarks.verdict_windows import ORDER, Job, Kind, fabric

from flatout.verdict import analyses
from flatout.verdict.analyses import BETTER, WORSE
from flatout.verdict.prospect import chances


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_identical_candidates_are_seldom_called_better_or_worse(name: str) -> None:
    tunings = make_tunings(SCENARIOS[name], 1.0, tunings=300)
    judged = summary(tunings, judge_tunings(tunings))
    assert judged["false_claims"] <= 0.05
    assert judged["coverage"] >= 0.95
    assert judged["median_fresh"] <= 6
    assert judged["fresh_9_of_10"] <= 8


def test_without_the_levels_of_the_analyses_false_claims_would_be_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    import msgspec
    from benchmarks import verdict_scenarios

    at_five_percent = tuple(msgspec.structs.replace(one, level=0.05) for one in analyses.ANALYSES)
    monkeypatch.setattr(verdict_scenarios, "ANALYSES", at_five_percent)
    tunings = make_tunings(SCENARIOS["white 3 %"], 1.0, tunings=300)
    assert summary(tunings, judge_tunings(tunings, gives_up=False))["false_claims"] > 0.08


@pytest.mark.parametrize(
    ("name", "speedup", "num_trials"),
    [
        ("white 1 %", 2.0, 9),
        ("white 5 %", 2.0, 9),
        ("white 10 %", 2.0, 11),
        ("white 20 %", 2.0, 13),
        ("white 5 %", 1.3, 11),
        ("white 10 %", 1.3, 15),
        ("white 1 %", 1.1, 11),
        ("white 3 %", 1.1, 13),
        ("white 1 %", 1.03, 15),
        ("warming 20 %", 1.1, 11),
        ("first trial twice as slow", 1.3, 9),
        ("two states 15 %", 1.3, 13),
        ("spikes 100 % in 5 % of trials", 1.3, 9),
        ("candidate 9 %, baseline 3 %", 1.3, 13),
    ],
)
def test_an_effect_is_found_in_few_trials_of_the_whole_tuning(name: str, speedup: float, num_trials: int) -> None:
    tunings = make_tunings(SCENARIOS[name], speedup, tunings=300)
    judged = summary(tunings, judge_tunings(tunings))
    assert judged["median_trials_to_claim"] is not None
    assert judged["median_trials_to_claim"] <= num_trials
    assert judged["power"] >= 0.85
    assert judged["coverage"] >= 0.95


def test_equivalence_is_claimed_where_it_holds_and_seldom_at_its_margin() -> None:
    same = make_tunings(SCENARIOS["white 1 %"], 1.0, tunings=200, num_screened=1)
    assert summary(same, judge_tunings(same, gives_up=False, min_effect=0.03))["equivalent"] > 0.9
    at_margin = make_tunings(SCENARIOS["white 1 %"], 1.03, tunings=200, num_screened=1)
    assert summary(at_margin, judge_tunings(at_margin, gives_up=False, min_effect=0.03))["equivalent"] <= 0.05


def test_a_forecast_comes_true_as_often_as_it_says() -> None:
    """A flat prior is right where effects come from a wide range: then forecasts and outcomes agree."""
    rng = np.random.default_rng(3)
    tunings = make_tunings(SCENARIOS["white 5 %"], 1.0, tunings=600, num_screened=1)
    shifts = rng.uniform(-0.4, 0.4, 600)
    is_candidate = np.array([arm == "B" for arm in tunings.order])
    logs = tunings.logs - shifts[:, None] * is_candidate
    _, arrangement = tunings.arrangement(int(tunings.chosen[0]))
    end, later_end = arrangement.end_of_fresh(3), arrangement.end_of_fresh(4)
    forecast = chances(logs[:, :end], arrangement.first(end), num_run=3, num_screened=1, min_effect=0.01)[0]
    assert forecast.arrangement.positions == arrangement.first(later_end).positions
    fitted = analyses.analyse(
        logs[:, :later_end],
        arrangement.first(later_end),
        analyses.ANALYSES[3],
        num_screened=1,
        min_effect=0.01,
    )
    assert fitted is not None
    assert forecast.better.mean() == pytest.approx((fitted.claims == BETTER).mean(), abs=0.04)
    assert forecast.worse.mean() == pytest.approx((fitted.claims == WORSE).mean(), abs=0.04)
    is_unsure = (forecast.better > 0.2) & (forecast.better < 0.8)
    assert forecast.better[is_unsure].mean() == pytest.approx((fitted.claims == BETTER)[is_unsure].mean(), abs=0.15)


@pytest.mark.parametrize(("period", "num_steps"), [(15, 20), (15, 60), (40, 20), (40, 60)])
def test_windows_that_hold_more_ends_of_epochs_make_no_claim(period: int, num_steps: int) -> None:
    row = Kind(job=Job(period=period, num_steps=num_steps), regular=1.0, boundary=1.0, tunings=32).run()
    assert row["false_claims"] <= 2 / 32  # of 150 tunings, at most 3.3 %
    assert row["median_trials"] < len(ORDER)


def test_a_faster_step_is_found_beside_ends_of_epochs_and_its_interval_holds() -> None:
    row = Kind(job=Job(period=40, num_steps=100), regular=0.5, boundary=1.0, tunings=12).run()
    assert row["right"] >= 0.9
    assert row["whole"] == 1
    assert row["coverage_where_whole"] >= 0.9


def test_the_recorded_fabric_tuning_is_decided_by_two_more_trials_and_not_by_one() -> None:
    shares = fabric(60)
    assert shares["better after 1 more"] <= 0.05
    assert shares["better after 2 more"] >= 0.8
