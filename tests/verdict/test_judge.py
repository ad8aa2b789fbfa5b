"""What is called better, worse, equivalent or undecided, and what must not change a verdict."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.verdict.trials import noisy_pairs, pairs, swapped, trial

from flatout.errors import UsageError
from flatout.records.machine import Xid
from flatout.records.trial import BASELINE, Covariates, Pair
from flatout.records.verdict import NoiseFloor, Verdict
from flatout.verdict.interim import DEFAULT_INTERIM, InterimAnalysis, InterimPlan
from flatout.verdict.judge import is_worth_more_pairs, judge
from flatout.verdict.noise import noise_floor
from flatout.verdict.plain_cost import trial_cost

SMALL = [0.001, -0.001, 0.0005, -0.0008, 0.0003, -0.0006, 0.0009, -0.0002, 0.0004, -0.0007]


def floor(between_sd: float = 0.012, **values: object) -> NoiseFloor:
    made = NoiseFloor(
        objective="step_s",
        num_trials=6,
        num_steps=100,
        between_sd=between_sd,
        step_sd=0.02,
        step_correlation_time=1.0,
        drift_per_trial=0.0,
        spike_share=0.0,
        step_s=0.1,
        start_s=10.0,
        degrees_of_freedom=4,
    )
    return msgspec.structs.replace(made, **values)


def around(effect: float, count: int = 20) -> list[Pair]:
    """Pairs with a small noise around a true gain."""
    return pairs([math.log1p(effect) + SMALL[i % len(SMALL)] for i in range(count)])


def test_a_clear_gain_is_better() -> None:
    verdict = judge(around(0.05))
    assert verdict.verdict == "better"
    assert verdict.num_pairs == 6
    assert verdict.order == "AB BA AB BA AB BA"
    assert verdict.speedup == pytest.approx(1.05, abs=0.001)
    assert verdict.interval is not None
    assert 1 < verdict.interval[0] < 1.05 < verdict.interval[1]
    assert verdict.next_analysis is None


def test_many_times_the_noise_is_seen_in_four_pairs_of_noisy_runs() -> None:
    """Milliseconds a step of nanoGPT over TCP on two H200, as it came and with four sockets a connection."""
    first, plain, four_sockets = (167, 183, 215), (197, 201, 243, 198), (76.4, 82.8, 83.4, 76.0)
    measured = noise_floor([trial(i, step_s=[ms / 1e3] * 15) for i, ms in enumerate(first)])
    ratios = np.log(np.array(plain) / np.array(four_sockets))
    verdict = judge(pairs(ratios.tolist()), floor=measured)
    # By hand: what is left of the three first runs beside a straight line, with one degree of freedom.
    left = np.log(first) - np.polyval(np.polyfit(range(3), np.log(first), 1), range(3))
    sd = max(math.sqrt(2 * float(left @ left)), float(ratios.std(ddof=1)))
    half = stats.t.ppf(1 - 0.006 / 2, 3 + 1) * sd / math.sqrt(4)
    assert verdict.interval == pytest.approx((math.exp(ratios.mean() - half), math.exp(ratios.mean() + half)))
    assert (verdict.verdict, verdict.num_pairs) == ("better", 4)
    assert judge(pairs(ratios.tolist())).verdict == "undecided", "without a noise floor four runs may agree by chance"


def test_a_clear_loss_is_worse() -> None:
    assert judge(around(-0.05)).verdict == "worse"


def test_a_sure_gain_below_one_percent_is_not_better() -> None:
    verdict = judge(around(0.008))
    assert verdict.verdict == "equivalent"
    assert verdict.interval is not None
    assert verdict.interval[0] > 1


def test_identical_arms_with_little_noise_are_equivalent() -> None:
    verdict = judge(around(0))
    assert verdict.verdict == "equivalent"
    assert "within 1.0 %" in verdict.reason


def test_a_gain_lost_in_noise_is_undecided() -> None:
    ratios = [0.10, 0.08, -0.06, -0.09] * 5
    verdict = judge(pairs(ratios))
    assert verdict.verdict == "undecided"
    assert verdict.num_pairs == 20
    assert verdict.next_analysis is None


def test_before_the_first_look_nothing_is_said_but_when_it_comes() -> None:
    verdict = judge(around(0.5, 5))
    assert (verdict.verdict, verdict.interval, verdict.next_analysis) == ("undecided", None, 6)
    assert verdict.speedup == pytest.approx(1.5, abs=0.01)
    assert judge([]).speedup is None


def test_with_a_noise_floor_a_large_gain_needs_four_pairs_only() -> None:
    verdict = judge(around(0.5, 5), floor=floor())
    assert (verdict.verdict, verdict.num_pairs) == ("better", 4)
    assert judge(around(0.5, 3), floor=floor()).next_analysis == 4


def test_four_pairs_that_agree_by_chance_do_not_beat_the_noise_floor() -> None:
    lucky = pairs([0.03, 0.0301, 0.0299, 0.03])
    assert judge(lucky, floor=floor(0.012)).verdict == "undecided"
    assert judge(lucky, floor=floor(0.0001, step_sd=0.001)).verdict == "better"


def test_a_noise_floor_of_another_objective_is_none() -> None:
    assert judge(around(0.5, 5), floor=floor(objective="s_per_sample")).next_analysis == 6


def test_a_candidate_that_cannot_win_any_more_is_worth_no_more_pairs() -> None:
    losing = judge(pairs([-0.002, -0.012, -0.009, -0.001, -0.013, -0.004]))
    assert losing.best_case is not None
    assert losing.best_case < 1.01
    assert (losing.verdict, losing.next_analysis) == ("undecided", 8)
    assert not is_worth_more_pairs(losing)
    assert is_worth_more_pairs(judge(noisy_pairs(np.random.default_rng(5), 6, effect=0.01)))
    assert is_worth_more_pairs(judge([]))
    assert not is_worth_more_pairs(judge(around(0.05)))


def test_between_looks_the_verdict_is_that_of_the_last_look() -> None:
    uncertain = noisy_pairs(np.random.default_rng(5), 20)
    at_six = judge(uncertain[:6])
    assert at_six.next_analysis == 8
    assert judge(uncertain[:7]) == at_six


def test_when_no_more_will_come_the_rest_is_judged_at_the_level_of_the_next_analysis() -> None:
    nine = around(0.05)[:5] + around(0.05, 10)[5:9]
    quiet = InterimPlan(analyses=(InterimAnalysis(num_pairs=12, level=0.01, equivalence_level=0.01),))
    assert judge(nine, interim=quiet).verdict == "undecided"
    last = judge(nine, interim=quiet, is_last=True)
    assert (last.verdict, last.num_pairs, last.next_analysis) == ("better", 9, None)
    assert judge(nine[:5], interim=quiet, is_last=True).verdict == "undecided"
    assert judge(nine[:3], interim=quiet, is_last=True, floor=floor(0.0001, step_sd=0)).num_pairs == 3


def test_the_interval_is_that_of_the_paired_t_at_the_level_of_the_look() -> None:
    from scipy import stats

    ratios = np.random.default_rng(8).normal(0.06, 0.01, 6)
    verdict = judge(pairs(ratios.tolist(), orders=["AB"] * 6))
    expected = stats.ttest_1samp(ratios, 0).confidence_interval(1 - 0.014)
    assert verdict.interval == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


def test_the_best_case_is_the_end_of_scipys_one_sided_interval_of_ninety_percent() -> None:
    ratios = np.random.default_rng(8).normal(0.0, 0.03, 6)
    verdict = judge(pairs(ratios.tolist(), orders=["AB"] * 6))
    high = ratios.mean() + stats.t.ppf(0.9, 5) * ratios.std(ddof=1) / math.sqrt(6)
    assert verdict.verdict == "undecided"
    assert verdict.best_case == pytest.approx(math.exp(high))


# ---- what must not matter ----

RATIOS = st.lists(st.floats(-0.1, 0.1), min_size=0, max_size=22)


def mirrored(verdict: Verdict) -> str:
    return {"better": "worse", "worse": "better"}.get(verdict.verdict, verdict.verdict)


@settings(deadline=None, max_examples=60)
@given(RATIOS, st.booleans())
def test_exchanging_the_arms_mirrors_the_verdict(ratios: list[float], has_floor: bool) -> None:
    given_floor = floor() if has_floor else None
    one, other = judge(pairs(ratios), floor=given_floor), judge(swapped(pairs(ratios)), floor=given_floor)
    assert mirrored(one) == other.verdict
    assert (one.num_pairs, one.next_analysis) == (other.num_pairs, other.next_analysis)
    if one.interval and other.interval:
        assert one.interval == pytest.approx((1 / other.interval[1], 1 / other.interval[0]))


@settings(deadline=None, max_examples=60)
@given(RATIOS, st.sampled_from([1e-9, 1e-3, 1e3, 60.0]))
def test_the_unit_of_time_does_not_matter(ratios: list[float], unit: float) -> None:
    one, other = judge(pairs(ratios)), judge(pairs(ratios, baseline_s=0.1 * unit))
    assert (one.verdict, one.num_pairs) == (other.verdict, other.num_pairs)
    if one.interval and other.interval:
        assert one.interval == pytest.approx(other.interval, rel=1e-6)


@settings(deadline=None, max_examples=60)
@given(RATIOS, st.lists(st.tuples(st.integers(0, 22), st.floats(-2, 2)), max_size=6))
def test_void_pairs_do_not_count(ratios: list[float], voids: list[tuple[int, float]]) -> None:
    clean = pairs(ratios)
    mixed = list(clean)
    for position, ratio in voids:
        void = msgspec.structs.replace(pairs([ratio])[0], invalid_reason="throttled")
        mixed.insert(min(position, len(mixed)), void)
    one, other = judge(clean), judge(mixed)
    assert other.num_void <= len(voids)
    ignored = {"num_void": 0, "void_reasons": ()}
    assert msgspec.structs.replace(other, **ignored) == msgspec.structs.replace(one, **ignored)


@settings(deadline=None, max_examples=60)
@given(RATIOS.filter(len))
def test_pairs_that_come_after_a_verdict_do_not_change_it(ratios: list[float]) -> None:
    everything = pairs(ratios)
    for count in range(len(ratios)):
        early = judge(everything[:count])
        if early.verdict != "undecided":
            assert judge(everything) == early
            break


# ---- spikes and stalls ----


def test_a_stall_at_every_fourth_step_counts_in_full() -> None:
    stalled = [0.05, 0.05, 0.05, 0.45] * 10
    mended = [0.05] * 40
    found = [
        Pair(
            baseline=trial(2 * i, BASELINE, [s * (1 + 0.001 * i) for s in stalled]),
            candidate=trial(2 * i + 1, "workers", mended),
        )
        for i in range(6)
    ]
    verdict = judge(found)
    assert verdict.verdict == "better"
    assert verdict.speedup == pytest.approx(3.0, rel=0.01)  # the medians are equal


def test_a_stall_at_every_tenth_step_counts_in_full() -> None:
    """0.1 s, and 0.4 s in each tenth step: 0.13 s on average, and without the stalls 1.3 times as fast."""
    stalled, steady = [0.1] * 9 + [0.4], [0.1] * 10
    found = [
        Pair(
            baseline=trial(2 * i, BASELINE, [s * (1 + 0.001 * i) for s in 4 * stalled]),
            candidate=trial(2 * i + 1, "workers", 4 * steady),
        )
        for i in range(6)
    ]
    verdict = judge(found)
    assert verdict.verdict == "better"
    assert verdict.speedup == pytest.approx(1.3, rel=0.01)


def test_a_step_of_more_than_one_and_a_half_medians_is_a_spike() -> None:
    steps = [0.1] * 96 + [0.14, 0.14, 0.16, 0.25]
    cost = trial_cost(trial(0, step_s=steps), "step_s")
    assert (cost.num_spikes, cost.num_steps) == (2, 100)
    assert cost.log(drop_spikes=True) == pytest.approx(math.log((9.6 + 0.28) / 98))
    assert cost.log(drop_spikes=False) == pytest.approx(math.log((9.6 + 0.28 + 0.41) / 100))


def test_rare_spikes_do_not_hide_a_gain() -> None:
    rng = np.random.default_rng(11)
    found = []
    for i in range(6):
        steps = {"a": np.full(100, 0.1), "b": np.full(100, 0.1 / 1.05)}
        for values in steps.values():
            values *= np.exp(rng.normal(0, 0.003, 100))
            values[rng.choice(100, 2, replace=False)] *= rng.uniform(2, 20, 2)
        found.append(Pair(baseline=trial(2 * i, BASELINE, steps["a"]), candidate=trial(2 * i + 1, "b", steps["b"])))
    assert judge(found).verdict == "better"


def test_faster_steps_at_the_price_of_long_pauses_are_not_better() -> None:
    steady = [0.1] * 100
    pausing = [0.095] * 98 + [2.0] * 2
    found = [
        Pair(
            baseline=trial(2 * i, BASELINE, [s * (1 + 0.0005 * (i % 3)) for s in steady]),
            candidate=trial(2 * i + 1, "c", pausing),
        )
        for i in range(20)
    ]
    verdict = judge(found)
    assert verdict.verdict == "undecided"
    assert verdict.reason == "typical steps and the mean of all steps contradict each other"


# ---- void pairs ----


def with_covariates(at: dict[int, tuple[Covariates, Covariates]], usual: tuple[Covariates, Covariates]) -> list[Pair]:
    made = around(0.05, 10)
    return [
        msgspec.structs.replace(
            pair,
            baseline=msgspec.structs.replace(pair.baseline, covariates=at.get(i, usual)[0]),
            candidate=msgspec.structs.replace(pair.candidate, covariates=at.get(i, usual)[1]),
        )
        for i, pair in enumerate(made)
    ]


def clock(hz: float) -> Covariates:
    return Covariates(sm_clock_hz=hz)


def test_a_pair_on_different_nodes_is_void() -> None:
    here, there = Covariates(nodes="n[1-2]"), Covariates(nodes="n[2-3]")
    moved = pairs([0.1] * 7, covariates=here)
    moved[3] = msgspec.structs.replace(
        moved[3], candidate=msgspec.structs.replace(moved[3].candidate, covariates=there)
    )
    moved[4:] = pairs([0.1] * 7, covariates=there)[4:]  # both elsewhere: they compare
    verdict = judge(moved, is_last=True)
    assert (verdict.num_void, verdict.void_reasons) == (1, ("the two trials ran on different nodes",))


def test_a_pair_in_which_a_clock_fell_is_void() -> None:
    verdict = judge(with_covariates({4: (clock(1.9e9), clock(1.5e9))}, (clock(1.9e9), clock(1.9e9))))
    assert (verdict.verdict, verdict.num_pairs, verdict.num_void) == ("better", 6, 1)
    assert "SM clocks" in verdict.void_reasons[0]
    assert verdict.order == "AB BA AB BA BA AB"


@pytest.mark.parametrize("odd", [0, 1])
def test_one_odd_pair_at_the_start_does_not_void_those_after_it(odd: int) -> None:
    """It is the usual difference that counts, and one or two pairs do not say what is usual."""
    verdict = judge(with_covariates({odd: (clock(1.9e9), clock(1.5e9))}, (clock(1.9e9), clock(1.9e9))))
    assert verdict.num_void == 0


def throttled(**shares: float) -> Covariates:
    return Covariates(throttle_share=shares)


def starved(share: float) -> Covariates:
    return Covariates(quota_throttled_s_per_s=share)


@pytest.mark.parametrize(
    ("usual", "odd", "is_void"),
    [
        # Clocks go in steps of 15 MHz: two of them are 1.6 %, and a twentieth is another state.
        (clock(1.9e9), clock(1.87e9), False),
        (clock(1.9e9), clock(1.805e9), True),
        # Shares of a trial's time.
        (throttled(software_thermal=0.0), throttled(software_thermal=0.15), False),
        (throttled(software_thermal=0.0), throttled(software_thermal=0.3), True),
        (starved(0.0), starved(0.15), False),
        (starved(0.0), starved(0.3), True),
        # Hardware that protects itself: a moment of it is nothing.
        (throttled(power_brake=0.0), throttled(power_brake=0.03), False),
        (throttled(power_brake=0.0), throttled(power_brake=0.1), True),
    ],
)
def test_how_far_one_pair_may_depart_from_the_others(usual: Covariates, odd: Covariates, is_void: bool) -> None:
    assert judge(with_covariates({4: (usual, odd)}, (usual, usual))).num_void == is_void


def test_clocks_that_the_change_itself_lowers_are_its_effect() -> None:
    assert judge(with_covariates({}, (clock(1.9e9), clock(1.6e9)))).num_void == 0


def test_clocks_that_fall_for_both_arms_leave_the_pair_valid() -> None:
    lower = (clock(1.5e9), clock(1.5e9))
    assert judge(with_covariates(dict.fromkeys(range(4, 10), lower), (clock(1.9e9), clock(1.9e9)))).num_void == 0


@pytest.mark.parametrize(
    ("covariates", "words"),
    [
        (Covariates(xids=(Xid(number=79, gpu=3),)), "Xid 79 on GPU 3 in trial 2: GPU has fallen off the bus"),
        (Covariates(throttle_share={"hardware_thermal": 0.3}), "hardware thermal"),
    ],
)
def test_a_gpu_that_is_not_well_voids_a_pair_at_once(covariates: Covariates, words: str) -> None:
    verdict = judge(with_covariates({0: (Covariates(), covariates)}, (Covariates(), Covariates())))
    assert verdict.num_void == 1
    assert words in verdict.void_reasons[0]


@pytest.mark.parametrize(
    ("xids", "nodes", "reason"),
    [
        (((48, 0, None), (94, 0, None)), None, "Xid 48 on GPU 0 in trial 1: double bit ECC error (and 1 more)"),
        (((45, 2, None), (119, 2, None)), None, "Xid 119 on GPU 2 in trial 1: GSP RPC timeout"),
        (((119, None, "0000:9b:00"),), None, "Xid 119 on GPU 0000:9b:00 in trial 1: GSP RPC timeout"),
        (((999, 1, None),), "n[1-2]", "Xid 999 on GPU 1 of n2 in trial 1"),
    ],
)
def test_a_gpu_error_is_told_with_its_gpu_and_trial(
    xids: tuple[tuple[int, int | None, str | None], ...], nodes: str | None, reason: str
) -> None:
    found = tuple(Xid(number=number, gpu=gpu, address=at, hostname="n2") for number, gpu, at in xids)
    there = Covariates(xids=found, nodes=nodes)
    verdict = judge(with_covariates({0: (there, Covariates(xids=(), nodes=nodes))}, (Covariates(), Covariates())))
    assert verdict.void_reasons == (reason,)


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_an_error_that_the_job_causes_itself_is_not_the_machines(number: int) -> None:
    own = Covariates(xids=(Xid(number=number, gpu=0),))
    assert judge(with_covariates({0: (Covariates(), own)}, (Covariates(), Covariates()))).num_void == 0


def test_a_trial_that_failed_beside_a_gpu_error_is_void_for_that() -> None:
    made = around(0.05, 7)
    lost = Covariates(xids=(Xid(number=79, gpu=0),))
    failed = msgspec.structs.replace(made[2].candidate, outcome="failed", problem="exit code 1", covariates=lost)
    made[2] = msgspec.structs.replace(made[2], candidate=failed)
    assert judge(made).void_reasons == (f"Xid 79 on GPU 0 in trial {failed.index}: GPU has fallen off the bus",)


@pytest.mark.parametrize(
    ("allowed", "difference", "is_void"),
    [(None, 0.9, False), (None, 1.1, True), (2.0, 0.4, False), (2.0, 0.6, True), (8.0, 0.9, False), (8.0, 1.1, True),
     (64.0, 6.0, False), (64.0, 7.0, True)],
)  # fmt: skip
def test_a_neighbour_that_comes_for_one_trial_voids_the_pair_from_the_first_on(
    allowed: float | None, difference: float, is_void: bool
) -> None:
    busy = Covariates(cores_busy_by_others=0.3 + difference, cores_allowed=allowed)
    idle = Covariates(cores_busy_by_others=0.3, cores_allowed=allowed)
    for covariates in ((busy, idle), (idle, busy)):
        verdict = judge(with_covariates({0: covariates}, (idle, idle)))
        assert verdict.num_void == is_void
    if is_void:  # it came for the second trial
        assert verdict.void_reasons == (
            f"other processes kept {0.3 + difference:.1f} cores busy in trial 2, and 0.3 in trial 1",
        )


def test_a_neighbour_beside_both_trials_or_one_that_nobody_saw_voids_nothing() -> None:
    busy, unknown = Covariates(cores_busy_by_others=5.0), Covariates()
    assert judge(with_covariates({0: (busy, busy), 1: (busy, unknown)}, (unknown, unknown))).num_void == 0


def test_a_trial_that_failed_voids_its_pair() -> None:
    made = around(0.05, 7)
    failed = msgspec.structs.replace(made[2].candidate, outcome="out_of_memory")
    made[2] = msgspec.structs.replace(made[2], candidate=failed)
    verdict = judge(made)
    assert (verdict.verdict, verdict.num_void) == ("better", 1)
    assert verdict.void_reasons == ("a trial of candidate: out of memory",)


def test_another_objective_judges_another_number() -> None:
    made = [
        msgspec.structs.replace(
            pair,
            baseline=msgspec.structs.replace(pair.baseline, peak_memory_bytes=1000 + i, samples_per_step=8),
            candidate=msgspec.structs.replace(pair.candidate, peak_memory_bytes=600, samples_per_step=16),
        )
        for i, pair in enumerate(around(-0.05, 6))
    ]
    assert judge(made).verdict == "worse"
    memory = judge(made, objective="peak_memory_bytes")
    assert (memory.verdict, memory.speedup) == ("better", pytest.approx(1.671, abs=0.001))
    assert judge(made, objective="s_per_sample").speedup == pytest.approx(1.9, abs=0.001)
    tokens = judge(made, objective="s_per_token")
    assert (tokens.num_pairs, tokens.num_void) == (0, 6)
    assert tokens.void_reasons == ("a trial of baseline has no number of tokens",)


# ---- what is refused ----


def test_the_trials_that_chose_a_candidate_cannot_confirm_it() -> None:
    with pytest.raises(UsageError, match="chosen by the trials up to 3, and trial 1 is one of them"):
        judge(around(0.05, 6), fresh_after=3)
    assert judge(around(0.05, 6), fresh_after=0).verdict == "better"


def test_pairs_of_two_candidates_are_refused() -> None:
    made = around(0.05, 2)
    made[1] = msgspec.structs.replace(made[1], candidate=msgspec.structs.replace(made[1].candidate, arm="other"))
    with pytest.raises(UsageError, match="the pairs have 2: candidate, other"):
        judge(made)


@pytest.mark.parametrize("value", [0, 1, -0.01])
def test_a_least_effect_out_of_range_is_refused(value: float) -> None:
    with pytest.raises(UsageError, match="min_effect"):
        judge([], min_effect=value)


def test_levels_sum_to_five_percent_and_are_shared_among_claims() -> None:
    assert DEFAULT_INTERIM.error_rate == pytest.approx(0.05)
    assert sum(analysis.equivalence_level for analysis in DEFAULT_INTERIM.analyses) == pytest.approx(0.05)
    assert DEFAULT_INTERIM.for_claims(4).error_rate == pytest.approx(0.0125)
    assert DEFAULT_INTERIM.max_pairs == 20


@pytest.mark.parametrize("counts", [[], [2, 4], [6, 6], [8, 6]])
def test_looks_out_of_order_are_refused(counts: list[int]) -> None:
    with pytest.raises(UsageError, match="interim analyses must be at 3 pairs or more"):
        InterimPlan(
            analyses=tuple(InterimAnalysis(num_pairs=count, level=0.01, equivalence_level=0.01) for count in counts)
        )
    with pytest.raises(UsageError, match="number of claims"):
        DEFAULT_INTERIM.for_claims(0)


def test_a_pair_that_an_interruption_tore_apart_is_void() -> None:
    found = pairs([0.2] * 7)
    torn = msgspec.structs.replace(found[3].candidate, session=1)
    found[3] = msgspec.structs.replace(found[3], candidate=torn)
    found[4:] = [
        Pair(
            baseline=msgspec.structs.replace(pair.baseline, session=1),
            candidate=msgspec.structs.replace(pair.candidate, session=1),
        )
        for pair in found[4:]
    ]
    verdict = judge(found)
    assert (verdict.num_pairs, verdict.num_void) == (6, 1)
    assert verdict.void_reasons == ("its two trials ran before and after an interruption",)
