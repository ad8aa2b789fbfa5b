"""A candidate is judged by all trials of both arms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.verdict.arms import arms, noisy_arms, recorded
from tests.verdict.trials import trial

from flatout.errors import UsageError
from flatout.records.trial import Covariates, TrialResult
from flatout.verdict.arms import Question, judge_arms
from flatout.verdict.arrangement import planned
from flatout.verdict.effect import fit_effect

MINGPT = "nccl-sockets=1x1+16"


def test_the_recorded_tuning_of_mingpt_is_decided_by_its_eighth_trial() -> None:
    trials = recorded("mingpt")
    verdicts = [judge_arms(trials[:n], MINGPT, num_screened=2, chosen_by=frozenset({4})) for n in range(1, 10)]
    assert [verdict.verdict for verdict in verdicts] == ["undecided"] * 8 + ["better"]
    assert verdicts[-1].speedup == pytest.approx(1.38, abs=0.02)
    assert verdicts[-1].interval is not None
    low, high = verdicts[-1].interval
    assert 1.1 < low < 1.36 < high < 1.7
    assert (verdicts[-1].num_baselines, verdicts[-1].num_candidates) == (5, 3)


def test_one_trial_of_the_candidate_is_never_enough() -> None:
    fabric = recorded("fabric")
    verdict = judge_arms(fabric, "dataloader-workers=15", chosen_by=frozenset({4}))
    assert (verdict.verdict, verdict.interval) == ("undecided", None)
    assert "1 trial of the candidate and 4 baselines are too few" in verdict.reason
    assert verdict.probability_better is not None
    assert 0.95 < verdict.probability_better < 1
    of_three = judge_arms(fabric, "dataloader-workers=15", num_screened=3, chosen_by=frozenset({4}))
    assert of_three.probability_better == pytest.approx(verdict.probability_better**3)
    assert judge_arms(arms("AAAAB", [0, 0.01, 0, 0.01, -2]), "candidate").verdict == "undecided"
    assert judge_arms(arms("AAAABB", [0, 0.01, 0, 0.01, -2, -2.01]), "candidate").verdict == "better"


def test_one_baseline_is_never_enough() -> None:
    assert judge_arms(arms("ABBBB", [0, -2, -2, -2.01, -2]), "candidate").verdict == "undecided"
    assert judge_arms(arms("AABBBB", [0, 0.01, -2, -2, -2.01, -2]), "candidate").verdict == "better"


def test_a_large_effect_needs_few_trials_and_the_estimate_is_the_effect() -> None:
    verdict = judge_arms(noisy_arms(1, "AAABABAB", effect=math.log(2)), "candidate")
    assert verdict.verdict == "better"
    assert verdict.speedup == pytest.approx(2, rel=0.03)
    assert verdict.probability_better is not None
    assert verdict.probability_better > 0.99
    worse = judge_arms(noisy_arms(1, "AAABABAB", effect=-math.log(2)), "candidate")
    assert worse.verdict == "worse"
    assert worse.speedup == pytest.approx(0.5, rel=0.03)


def test_asking_again_with_more_trials_changes_no_verdict() -> None:
    trials = noisy_arms(2, "AAAB" + "AB" * 8, effect=0.06)
    verdicts = [judge_arms(trials[:n], "candidate") for n in range(1, len(trials) + 1)]
    first = next(v for v in verdicts if v.verdict != "undecided")
    after = verdicts[verdicts.index(first) :]
    assert len(after) > 3
    assert all(verdict == first for verdict in after)


def test_trials_between_two_analyses_are_not_looked_at_unless_they_are_the_last() -> None:
    trials = noisy_arms(3, "AAA" + "AB" * 5, sd=0.03)
    assert judge_arms(trials, "candidate").num_candidates == 4
    last = judge_arms(trials, "candidate", is_last=True)
    assert (last.num_candidates, last.next_analysis) == (5, None)


def test_the_trial_that_chose_among_few_counts_at_a_stricter_level() -> None:
    trials = noisy_arms(4, "AAABABAB", sd=0.05, effect=0.3)
    alone = judge_arms(trials, "candidate")
    chosen = judge_arms(trials[:6], "candidate", num_screened=3, chosen_by=frozenset({3}))
    assert chosen.num_candidates == 2
    same_trials = judge_arms(trials[:6], "candidate")
    assert same_trials.interval is not None
    assert chosen.interval is not None
    assert chosen.interval[0] < same_trials.interval[0]
    assert chosen.probability_better is not None
    assert same_trials.probability_better is not None
    assert chosen.probability_better < same_trials.probability_better < (alone.probability_better or 0)


def test_the_trial_that_chose_among_many_does_not_count() -> None:
    trials = noisy_arms(4, "AAABABABAB", sd=0.05, effect=0.3)
    chosen = judge_arms(trials, "candidate", num_screened=1000, chosen_by=frozenset({3}))
    lucky = [*trials[:3], msgspec.structs.replace(trials[3], step_s=(0.06,)), *trials[4:]]
    assert judge_arms(lucky, "candidate", num_screened=1000, chosen_by=frozenset({3})) == chosen
    assert chosen.num_candidates == 3


def test_other_arms_and_trials_that_did_not_complete_do_not_count() -> None:
    trials = noisy_arms(5, "AAABABAB", effect=0.3)
    others = [trial(20 + t.index, "another", [9.0]) for t in trials]
    failed = TrialResult(index=-1, arm="candidate", outcome="out_of_memory")
    verdict = judge_arms([*others, *trials], "candidate")
    assert verdict == judge_arms(trials, "candidate")
    with_failed = judge_arms([*trials, failed], "candidate")
    assert (with_failed.num_void, with_failed.void_reasons) == (1, ("a trial of candidate: out of memory",))


def test_a_trial_that_the_machine_spoiled_does_not_count() -> None:
    trials = noisy_arms(6, "AAAABABABAB", effect=0.3)
    throttled = Covariates(throttle_share={"hardware_thermal": 0.5})
    slow = msgspec.structs.replace(trials[6], step_s=(0.5,), covariates=throttled)
    verdict = judge_arms([*trials[:6], slow, *trials[7:]], "candidate")
    assert verdict.verdict == "better"
    assert verdict.speedup == pytest.approx(math.exp(0.3), rel=0.03)
    assert (verdict.num_void, verdict.num_candidates) == (1, 2)
    assert verdict.void_reasons == ("the GPU was throttled (hardware thermal) in trial 6 of candidate",)


def test_a_load_that_differs_a_little_leaves_a_large_effect_plain() -> None:
    """Two cores, shared with other jobs all the time: loads differ, and a fourfold gain is beyond what they explain."""
    milliseconds, loads = (52.3, 57.5, 14.3, 54.0, 17.5), (1.62, 1.81, 0.91, 1.76, 1.18)
    trials = [
        trial(i, arm, [step / 1000], covariates=Covariates(cores_busy_by_others=load, cores_allowed=2.0))
        for i, (arm, step, load) in enumerate(
            zip(("baseline", "baseline", "candidate", "baseline", "candidate"), milliseconds, loads, strict=True)
        )
    ]
    verdict = judge_arms(trials, "candidate", chosen_by=frozenset({2}))
    assert (verdict.verdict, verdict.num_void) == ("better", 0)
    assert verdict.interval is not None
    assert 1.05 < verdict.interval[0] < 1.2


def loaded(arm: str, load: float, *, slowed: float = 0.0) -> tuple[float, float]:
    """Return the 95 % interval of twelve trials with a fourfold gain; in two of the arm's, the load was another."""
    trials = noisy_arms(12, "AABABABABABA", effect=1.4)
    indices = [t.index for t in trials if t.arm == arm][-2:]
    changed = []
    for each in trials:
        is_loaded = each.index in indices
        covariates = Covariates(cores_busy_by_others=load if is_loaded else 0.8, cores_allowed=2.0)
        step_s = [step_s * math.exp(slowed * is_loaded) for step_s in each.step_s]
        changed.append(msgspec.structs.replace(each, covariates=covariates, step_s=tuple(step_s)))
    compared = Question(candidate="candidate").arms(changed)
    effect = fit_effect(compared.logs, compared.arrangement, shared=compared.shared, shifts=compared.shifts)
    assert effect is not None
    low, high = effect.interval(0.05)
    return math.exp(low[0]), math.exp(high[0])


@pytest.mark.parametrize(
    ("arm", "load", "is_low_moved"),
    [
        ("baseline", 1.6, True),  # more load made the baseline slow: the gain may be smaller
        ("candidate", 1.6, False),  # it made the candidate slow: the gain may be larger
        ("baseline", 0.0, False),
        ("candidate", 0.0, True),
    ],
)
def test_a_load_widens_the_interval_only_to_the_side_to_which_it_moved_the_cost(
    arm: str, load: float, is_low_moved: bool
) -> None:
    usual, unusual = loaded(arm, 0.8), loaded(arm, load)
    assert (unusual[0] < 0.97 * usual[0]) is is_low_moved
    assert (unusual[1] > 1.03 * usual[1]) is not is_low_moved


@pytest.mark.parametrize("slowed", [0.0, 0.17, 0.33])
@pytest.mark.parametrize("arm", ["baseline", "candidate"])
def test_the_interval_holds_whatever_part_of_its_load_slowed_a_trial(arm: str, slowed: float) -> None:
    low, high = loaded(arm, 1.6, slowed=slowed)
    assert low < math.exp(1.4) < high


def test_what_comes_after_an_analysis_does_not_change_which_of_its_trials_count() -> None:
    """The loads of later trials would make those of the first ones unusual."""
    busy = Covariates(cores_busy_by_others=8.0, cores_allowed=8.0)
    first = [msgspec.structs.replace(t, covariates=busy) for t in noisy_arms(7, "AAABAB", effect=0.3)]
    later = [msgspec.structs.replace(t, index=6 + t.index) for t in noisy_arms(8, "ABABABABABABAB")]
    quiet = [msgspec.structs.replace(t, covariates=Covariates(cores_busy_by_others=0.0)) for t in later]
    verdict = judge_arms(first, "candidate")
    assert verdict.verdict == "better"
    assert judge_arms([*first, *quiet], "candidate") == verdict


def test_levels_of_different_sessions_are_not_compared() -> None:
    jump = [0.0] * 4 + [0.5] * 6
    noise = [0.01, -0.01, 0.005, 0.0, 0.01, -0.01, 0.0, 0.01, -0.005, 0.0]
    trials = arms("AAABBABABA", [a + b for a, b in zip(jump, noise, strict=True)], effect=0.4)
    in_sessions = [msgspec.structs.replace(t, session=int(t.index >= 4)) for t in trials]
    verdict = judge_arms(in_sessions, "candidate")
    assert verdict.verdict == "better"
    assert verdict.speedup == pytest.approx(math.exp(0.4), rel=0.02)
    apart = [msgspec.structs.replace(t, session=int(t.arm == "candidate")) for t in trials]
    assert judge_arms(apart, "candidate").verdict == "undecided"


def test_the_best_case_is_exceeded_with_a_probability_of_a_tenth() -> None:
    """By the fit, which `test_effect` holds to another way of computing it."""
    trials = noisy_arms(12, "AAABAB", sd=0.1)
    verdict = judge_arms(trials, "candidate")
    effect = fit_effect(np.log([[one.step_s[0] for one in trials]]), planned("AAABAB"))
    assert effect is not None
    assert verdict.best_case == pytest.approx(math.exp(effect.interval(0.2)[1][0]))
    assert verdict.error_rate == 0.05
    assert verdict.min_effect == 0.01
    assert verdict.num_pairs == 2


@settings(deadline=None)  # two verdicts take longer than its 0.2 s on a busy machine
@given(unit=st.floats(min_value=1e-6, max_value=1e6))
def test_the_unit_of_time_does_not_matter(unit: float) -> None:
    trials = noisy_arms(9, "AAABABAB", sd=0.03, effect=0.3)
    scaled = [msgspec.structs.replace(one, step_s=(one.step_s[0] * unit,)) for one in trials]
    expected, verdict = judge_arms(trials, "candidate"), judge_arms(scaled, "candidate")
    assert verdict.verdict == expected.verdict
    assert verdict.interval == pytest.approx(expected.interval, rel=1e-6)


def of_steps(plan: str, baseline: Sequence[float], candidate: Sequence[float]) -> list[TrialResult]:
    """Trials of the same steps but for 1 % of noise between runs."""
    rng = np.random.default_rng(10)
    steps = {"A": np.array(baseline), "B": np.array(candidate)}
    names = {"A": "baseline", "B": "candidate"}
    return [
        trial(index, names[arm], (steps[arm] * math.exp(rng.normal(0, 0.01))).tolist())
        for index, arm in enumerate(plan)
    ]


@pytest.mark.parametrize("every", [4, 10])
def test_a_regular_stall_counts_in_full(every: int) -> None:
    """A loader with too few workers: each so many steps take three times as long, which a median would hide."""
    stalling = [0.3 if step % every == every - 1 else 0.1 for step in range(80)]
    verdict = judge_arms(of_steps("AAABABABAB", stalling, [0.1] * 80), "candidate")
    assert verdict.verdict == "better"
    assert verdict.speedup == pytest.approx(1 + 2 / every, rel=0.03)


def test_faster_steps_at_the_price_of_long_pauses_are_not_better() -> None:
    pausing = [0.09] * 100
    pausing[30] = pausing[70] = 2.0
    verdict = judge_arms(of_steps("AAABABABAB", [0.1] * 100, pausing), "candidate")
    assert verdict.verdict != "better"


def test_another_objective_judges_another_number() -> None:
    memory = {"A": 10 * 2**30, "B": 6 * 2**30}
    trials = [
        msgspec.structs.replace(one, peak_memory_bytes=memory[arm] + 2**20 * index, samples_per_step=8.0)
        for index, (arm, one) in enumerate(zip("AAABABAB", noisy_arms(11, "AAABABAB"), strict=True))
    ]
    by_memory = judge_arms(trials, "candidate", objective="peak_memory_bytes")
    assert by_memory.verdict == "better"
    assert by_memory.speedup == pytest.approx(10 / 6, rel=0.01)
    assert judge_arms(trials, "candidate", objective="s_per_sample").verdict != "better"
    no_energy = judge_arms(trials, "candidate", objective="j_per_step")
    assert (no_energy.num_void, no_energy.verdict) == (8, "undecided")
    assert "a trial of baseline has no energy" in no_energy.void_reasons


def test_impossible_questions_are_refused() -> None:
    with pytest.raises(UsageError, match="between 0 and 1, but got 1"):
        judge_arms([], "candidate", min_effect=1)
    with pytest.raises(UsageError, match="at least 1, but got 0"):
        judge_arms([], "candidate", num_screened=0)
    assert judge_arms([], "candidate").reason.startswith("no trials of the candidate and no baselines")
