"""When trials are analysed, at which levels, and when a candidate is given up."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from flatout.records.verdict import Prospect
from flatout.verdict.analyses import (
    ANALYSES,
    BETTER,
    EQUIVALENT,
    UNDECIDED,
    WORSE,
    Analysis,
    analyse,
    next_analysis,
    plan_steps,
    used_trials,
    worth_more,
)
from flatout.verdict.arrangement import planned
from flatout.verdict.effect import fit_effect
from flatout.verdict.prospect import is_worth_more

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "verdicts.md"


def test_the_analyses_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) % \| ([\d.]+) % \|$", PAGE.read_text(), re.MULTILINE)
    in_code = [(one.num_fresh, one.level, one.equivalence_level) for one in ANALYSES]
    on_page = [(int(count), round(float(level) / 100, 4), round(float(other) / 100, 4)) for count, level, other in rows]
    assert in_code == on_page
    assert sum(one.level for one in ANALYSES) == pytest.approx(0.058)
    assert sum(one.equivalence_level for one in ANALYSES) <= 0.05
    assert next_analysis(0) == ANALYSES[0]
    assert next_analysis(4) == ANALYSES[4]
    assert next_analysis(5) == ANALYSES[4]
    assert next_analysis(20) is None


def effect_of(shift: float, *, level: float = 0.01, equivalence_level: float = 0.01, margin: float = 0.01) -> int:
    """What is claimed if the candidate is faster by a shift of the log, with noise of 2 %."""
    arrangement = planned("AAAABABABAB")
    noise = np.array([0.02, -0.02, 0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, -0.01, 0.01])
    logs = noise - shift * np.array(arrangement.is_candidate)
    analysis = Analysis(num_fresh=4, level=level, equivalence_level=equivalence_level)
    fitted = analyse(logs[None, :], arrangement, analysis, num_screened=1, min_effect=margin)
    assert fitted is not None
    return int(fitted.claims[0])


def test_a_claim_needs_an_interval_beyond_one_and_an_estimate_beyond_the_least_effect() -> None:
    arrangement = planned("AAAABABABAB")
    noise = np.array([0.02, -0.02, 0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, -0.01, 0.01])
    effect = fit_effect(noise[None, :], arrangement)
    assert effect is not None
    low, high = effect.interval(0.01)
    assert effect_of(-low[0] + 1e-6) == BETTER
    assert effect_of(-low[0] - 1e-6) == UNDECIDED
    assert effect_of(-high[0] - 1e-6) == WORSE
    assert effect_of(-high[0] + 1e-6) == UNDECIDED
    at_margin = np.log1p(0.2) - effect.estimate[0]
    assert effect_of(at_margin + 1e-6, margin=0.2) == BETTER
    assert effect_of(at_margin - 1e-6, margin=0.2) == UNDECIDED
    assert effect_of(-np.log1p(0.2) - effect.estimate[0] - 1e-6, margin=0.2) == WORSE
    assert effect_of(-np.log1p(0.2) - effect.estimate[0] + 1e-6, margin=0.2) == UNDECIDED


def test_equivalence_needs_both_one_sided_tests() -> None:
    arrangement = planned("AAAABABABAB")
    noise = np.array([0.02, -0.02, 0.01, -0.01, 0.02, 0.0, -0.02, 0.01, 0.0, -0.01, 0.01])
    effect = fit_effect(noise[None, :], arrangement)
    assert effect is not None
    low, high = effect.interval(2 * 0.01)
    largest = np.log1p(0.1) - high[0]
    assert effect_of(largest - 1e-6, margin=0.1) == EQUIVALENT
    assert effect_of(largest + 1e-6, margin=0.1) == UNDECIDED
    smallest = -np.log1p(0.1) - low[0]
    assert effect_of(smallest + 1e-6, margin=0.1) == EQUIVALENT
    assert effect_of(smallest - 1e-6, margin=0.1) == UNDECIDED


@pytest.mark.parametrize(("order", "is_enough"), [("AABB", True), ("AAAB", False), ("ABBB", False)])
def test_two_trials_of_each_arm_are_the_fewest(order: str, is_enough: bool) -> None:
    fitted = analyse(np.zeros((1, 4)), planned(order), ANALYSES[0], num_screened=1, min_effect=0.01)
    assert (fitted is not None) is is_enough


def test_the_choosing_trial_counts_only_while_that_makes_the_interval_narrower() -> None:
    """By the variances of two arms' means: 1 / candidates + 1 / baselines, and Student's quantiles."""
    for num_fresh, num_screened in ((1, 3), (2, 2), (2, 30), (8, 3), (20, 2)):
        arrangement = planned("AAAA" + "BA" * num_fresh + "B", chosen=(4,))
        places, divisor = used_trials(arrangement, 0.009, num_screened)
        baselines = 4 + num_fresh

        def width(candidates: int, level: float, baselines: int = baselines) -> float:
            if candidates < 2:
                return np.inf
            freedom = candidates + baselines - 2
            return float(stats.t.ppf(1 - level / 2, freedom) * np.sqrt(1 / candidates + 1 / baselines))

        counts = width(num_fresh + 1, 0.009 / num_screened) <= width(num_fresh, 0.009)
        assert (divisor == num_screened) is counts, (num_fresh, num_screened)
        assert (4 in places) is counts
    assert used_trials(planned("AAAABAB"), 0.009, 3) == (tuple(range(7)), 1)


def prospect(better: float, total_fresh: int, *, num_trials: int = 4) -> Prospect:
    return Prospect(
        num_trials=num_trials, num_fresh=2, total_fresh=total_fresh, better=better, worse=0.0, equivalent=0.0
    )


def test_a_candidate_is_given_up_below_a_tenth_and_after_many_trials_below_three_tenths() -> None:
    assert is_worth_more([prospect(0.101, 7)])
    assert not is_worth_more([prospect(0.099, 7)])
    assert not is_worth_more([prospect(0.299, 8)])
    assert is_worth_more([prospect(0.301, 8)])
    assert (worth_more(5), worth_more(6)) == (0.1, 0.3)
    assert not is_worth_more([])
    assert not is_worth_more([prospect(0.9, 7, num_trials=5)], max_trials=4)
    assert is_worth_more([prospect(0.9, 7, num_trials=4)], max_trials=4)


def test_a_plan_has_the_analyses_that_were_made_and_those_to_come_unless_the_budget_ended() -> None:
    arrangement = planned("AAAABABAB")
    fitted = analyse(np.zeros((1, 9)), arrangement, ANALYSES[2], num_screened=1, min_effect=0.01)
    assert fitted is not None
    steps = plan_steps([fitted], arrangement, num_run=3, num_screened=1, model=0)
    assert [step.num_fresh for step in steps] == [3, 4, 6, 8, 12, 20]
    assert all(a.variance > b.variance for a, b in itertools.pairwise(steps))
    early = analyse(np.zeros((1, 9)), arrangement, ANALYSES[3], num_screened=1, min_effect=0.01)
    assert early is not None
    assert len(plan_steps([early], arrangement, num_run=3, num_screened=1, model=0)) == 1
