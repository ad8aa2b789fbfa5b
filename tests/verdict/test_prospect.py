"""What more trials would show, and what a budget can show."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from tests.verdict.arms import arms, noisy_arms, recorded

from flatout.errors import UsageError
from flatout.verdict.analyses import ANALYSES, BETTER, analyse
from flatout.verdict.arrangement import planned
from flatout.verdict.effect import design, fit_effect
from flatout.verdict.prospect import USUAL_LEVEL, chances, detectable_effect, is_worth_more, trials_for, what_next


def test_a_clear_gain_after_one_trial_is_likely_to_be_shown_by_a_few_more() -> None:
    fabric = recorded("fabric")
    prospects = what_next(fabric, "dataloader-workers=15", chosen_by=frozenset({4}))
    by_trials = {prospect.num_trials: prospect.better for prospect in prospects}
    assert by_trials[4] > 0.7
    assert is_worth_more(prospects, max_trials=4)
    assert not is_worth_more(prospects, max_trials=1)


def test_a_candidate_that_looks_the_same_or_worse_is_given_up() -> None:
    same = noisy_arms(1, "AAAABABABAB", sd=0.03)
    assert not is_worth_more(what_next(same, "candidate"))
    worse = noisy_arms(1, "AAAABAB", sd=0.03, effect=-0.1)
    assert not is_worth_more(what_next(worse, "candidate"))
    promising = noisy_arms(1, "AAAABAB", sd=0.03, effect=0.1)
    assert is_worth_more(what_next(promising, "candidate"))


def chance_of_the_screened(gain: float, num_screened: int) -> dict[int, float]:
    """Return the chances, by fresh trials, of a candidate that its only trial chose among several."""
    trials = arms("AABAA", [0.0, 0.01, -gain, 0.0, 0.01])
    prospects = what_next(trials, "candidate", num_screened=num_screened, chosen_by=frozenset({2}))
    return {prospect.num_fresh: prospect.better for prospect in prospects}


def test_a_candidate_is_not_given_up_because_the_trial_that_chose_it_will_not_count() -> None:
    """After two fresh trials, that trial is not worth its price among eight; it still says what they will show."""
    chances_of_eight = chance_of_the_screened(0.1, 8)
    assert set(chances_of_eight) == {analysis.num_fresh for analysis in ANALYSES}
    assert chances_of_eight[2] > 0.4
    assert chances_of_eight[4] > 0.6


def test_the_best_of_several_that_hardly_differs_is_given_up() -> None:
    assert max(chance_of_the_screened(0.005, 8).values()) < 0.1
    assert max(chance_of_the_screened(0.005, 1).values()) > 0.1


def test_a_decided_candidate_has_no_prospects() -> None:
    assert what_next(noisy_arms(1, "AAABABAB", effect=math.log(2)), "candidate") == ()
    assert what_next([], "candidate") == ()


def test_a_budget_shows_what_it_says() -> None:
    effect = detectable_effect(0.05, 9, num_screened=1)
    assert effect is not None
    arrangement = planned("AAABABABA")
    is_candidate = np.array(arrangement.is_candidate)
    logs = np.random.default_rng(4).normal(0, 0.05, (500, 9)) - math.log1p(effect) * is_candidate
    is_found = np.zeros(500, dtype=np.bool_)
    for analysis in ANALYSES[1:3]:  # after the second and the third trial of the candidate
        end = arrangement.end_of_fresh(analysis.num_fresh)
        fitted = analyse(logs[:, :end], arrangement.first(end), analysis, num_screened=1, min_effect=0.01)
        assert fitted is not None
        is_found |= fitted.claims == BETTER
    assert is_found.mean() == pytest.approx(0.8, abs=0.05)
    assert detectable_effect(0.05, 5, num_screened=1) is None
    more = detectable_effect(0.05, 20, num_screened=1)
    assert more is not None
    assert more < effect


def test_the_number_of_trials_for_an_effect_is_the_first_that_shows_it() -> None:
    num_trials = trials_for(0.3, 0.05, num_screened=1)
    assert num_trials is not None
    enough, one_less = (
        detectable_effect(0.05, num_trials, num_screened=1),
        detectable_effect(0.05, num_trials - 1, num_screened=1),
    )
    assert enough is not None
    assert enough <= 0.3
    assert one_less is None or one_less > 0.3
    assert trials_for(0.03, 0.2, num_screened=1) is None
    with pytest.raises(UsageError, match=r"above 0\.01"):
        trials_for(0.01, 0.05, num_screened=1)


def test_a_plan_begins_with_three_baselines_and_one_candidate_and_asks_for_four_fifths() -> None:
    explicit = detectable_effect(0.05, 9, num_baselines=3, num_screened=1, power=0.8)
    assert detectable_effect(0.05, 9, num_screened=1) == explicit
    assert detectable_effect(0.05, 9, num_screened=1, num_baselines=4) != explicit
    assert detectable_effect(0.05, 9, num_screened=2) != explicit
    assert detectable_effect(0.05, 9, num_screened=1, power=0.6) != explicit
    promising = noisy_arms(1, "AAAABAB", sd=0.03, effect=0.1)
    chosen = frozenset({4})
    alone = what_next(promising, "candidate", chosen_by=chosen)
    assert alone == what_next(promising, "candidate", num_screened=1, chosen_by=chosen)
    assert alone != what_next(promising, "candidate", num_screened=2, chosen_by=chosen)


@pytest.mark.parametrize(("sd", "is_capped"), [(0.02, False), (0.3, True)])
def test_a_forecast_supposes_the_widest_sensible_spread_at_most(sd: float, is_capped: bool) -> None:
    """If trials are noisy, the forecast interval is no wider than with a known spread of 35 %."""
    now, later = planned("AAABAB"), planned("AAABABAB")
    pattern = np.array([0.5, -1.0, 0.7, 0.4, -0.6, -0.4])
    logs = (sd * pattern - 2.4 * sd * np.array(now.is_candidate))[None, :]
    effect, before, after = fit_effect(logs, now), design(now), design(later)
    assert effect is not None and before is not None and after is not None
    analysis = ANALYSES[2]
    low, high = effect.interval(ANALYSES[0].level)
    of_one = 2 * stats.t.ppf(1 - ANALYSES[0].level / 2, before.degrees_of_freedom) * effect.error
    hull = np.sqrt(np.maximum((high - low) / of_one, 1.0))
    sigmas = effect.errors[:, 0] / np.sqrt(before.variances)
    half = hull * stats.t.ppf(1 - analysis.level / 2, after.degrees_of_freedom) * sigmas * np.sqrt(after.variances)
    most = stats.norm.ppf(1 - analysis.level / 2) * 0.35 * np.sqrt(after.variances_if_alike)
    assert bool((half > most).any()) is is_capped
    least = np.maximum(np.minimum(half, most), math.log(1.01))
    change = sigmas * np.sqrt(before.variances - after.variances)
    better = stats.t.sf((least - effect.means[:, 0]) / change, before.degrees_of_freedom)
    by_hand = float((effect.probabilities[:, 0] * better).sum())
    first = chances(logs, now, num_run=2, num_screened=1, min_effect=0.01)[0]
    assert first.arrangement.positions == later.positions
    assert float(first.better[0]) == pytest.approx(by_hand, rel=1e-6)
    assert 0.02 < by_hand < 0.98


def test_the_doubt_between_models_is_taken_at_the_level_of_the_first_analyses() -> None:
    assert [analysis.level for analysis in ANALYSES[:3]] == [USUAL_LEVEL] * 3


def test_noise_of_less_than_a_thousandth_makes_no_difference_to_what_can_be_detected() -> None:
    least, more = detectable_effect(0.001, 9, num_screened=1), detectable_effect(0.0015, 9, num_screened=1)
    assert detectable_effect(0.0003, 9, num_screened=1) == detectable_effect(0.0005, 9, num_screened=1) == least
    assert least is not None and more is not None and more > least
