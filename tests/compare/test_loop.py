"""The comparison itself, on simulated trials: what it ends with, and when it stops."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from tests.compare.simulated import SimulatedArms
from tests.verdict.trials import trial

from flatout.compare.evidence import ComparisonEvidence
from flatout.compare.judge import HOPELESS, is_gate_hopeless, judged
from flatout.compare.loop import MAX_FAILED, Compared, compare, next_length
from flatout.compare.options import CompareOptions
from flatout.errors import InputError
from flatout.records.comparison import ArmName
from flatout.records.stop_rule import StopRule
from flatout.records.trial import TrialResult
from flatout.tune.profiled import Profiled


def compared(arms: SimulatedArms, **options: object) -> tuple[Compared, list[str]]:
    said: list[str] = []
    asked = {"num_profiles": 0, "budget_s": 1e9} | options
    return compare(arms, CompareOptions(**asked), said.append), said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slowdown", "verdict", "outcome"),
    [(0.25, "worse", "failed"), (-0.2, "better", "passed"), (0.0, "equivalent", "passed"), (0.015, "worse", "passed")],
)
def test_the_verdict_and_the_gate_of_a_known_slowdown(slowdown: float, verdict: str, outcome: str) -> None:
    result, _ = compared(SimulatedArms(slowdown, noise=0.001), gate=0.03, num_steps=50)
    assert result.judged.gate is not None
    assert (result.judged.verdict.verdict, result.judged.gate.outcome, result.ended_by) == (verdict, outcome, "decided")
    assert result.judged.verdict.speedup == pytest.approx(1 / (1 + slowdown), abs=0.03)


def test_a_slowdown_of_exactly_the_gate_is_decided_neither_way() -> None:
    result, _ = compared(SimulatedArms(0.03, noise=0.005, seed=3), gate=0.03)
    assert result.judged.gate is not None
    assert result.judged.gate.outcome == "undecided"
    assert result.ended_by in ("hopeless", "last_analysis")
    low, high = result.judged.gate.slowdown or (math.nan, math.nan)
    assert low < 0.03 < high


def test_equal_arms_seldom_fail_the_gate() -> None:
    """A slice of `benchmarks/compare_gate.py`: with an error rate of 5 %, three of 12 fail in one of 50 runs."""
    outcomes = []
    for seed in range(12):
        arms = SimulatedArms(noise=0.02, seed=seed)
        trials = [arms.trial(12) for _ in range(15)]
        outcomes.append(judged(trials, objective="step_s", gate=0.03).gate)
    assert sum(gate is not None and gate.outcome == "failed" for gate in outcomes) <= 2


def test_arms_alternate_from_the_first_trial_on() -> None:
    result, _ = compared(SimulatedArms(0.2, noise=0.02))
    arms = "".join("A" if trial.arm == "baseline" else "B" for trial in result.evidence.trials)
    assert "ABBAABBAABBAABBA".startswith(arms)
    assert [trial.index for trial in result.evidence.trials] == list(range(len(arms)))


def test_the_power_is_stated_after_four_trials() -> None:
    result, said = compared(SimulatedArms(0.04, noise=0.01, seed=1), gate=0.03)
    assert said[0].startswith(
        "finds a slowdown of 5.0 %, as worse by more than the gate of 3.0 %, in 11 trials at 0.3 %"
    )
    stated = next(place for place, line in enumerate(said) if "the budget allows" in line)
    assert sum("  trial " in line for line in said[:stated]) == 3  # the fourth is reported after it
    assert result.power is not None and result.power.effect == pytest.approx(0.05)


@pytest.mark.parametrize(("trial_s", "ended_by"), [(10.0, "time_budget"), (1e9, "decided")])
def test_the_time_budget_ends_it(trial_s: float, ended_by: str) -> None:
    """A trial takes 5 s to start and 1 s of steps or more: 50 s allow at most eight."""
    result, _ = compared(SimulatedArms(noise=0.002), budget_s=5 * trial_s)
    assert result.ended_by == ended_by
    if ended_by == "time_budget":
        assert len(result.evidence.trials) <= 8


def test_the_maximum_number_of_trials_ends_it() -> None:
    result, _ = compared(SimulatedArms(noise=0.2), max_trials=6)
    assert (result.ended_by, len(result.evidence.trials)) == ("trial_budget", 6)
    assert result.judged.verdict.verdict == "undecided"


def test_without_a_decision_it_ends_at_the_last_analysis() -> None:
    result, _ = compared(SimulatedArms(noise=0.1, seed=2))
    assert result.ended_by == "last_analysis"
    assert result.judged.verdict.num_candidates == 20


def test_a_gate_that_stays_undecided_after_the_verdict_ends_at_the_last_analysis() -> None:
    """The verdict is final after the sixth trial of B; the slowdown is so close to the gate that it is not decided."""
    arms = SimulatedArms(0.05, shape="warming", seed=10_004)
    result, _ = compared(arms, gate=0.03, max_trials=60)
    assert result.judged.gate is not None
    assert (result.judged.verdict.verdict, result.judged.gate.outcome) == ("worse", "undecided")
    assert (result.ended_by, len(result.evidence.trials)) == ("last_analysis", 39)


@pytest.mark.parametrize(
    ("fails", "message"),
    [
        ({0: "exit code 1: ValueError: x"}, "A's command fails, and B has not been run: exit code 1: ValueError: x"),
        ({1: "exit code 1: ValueError: x"}, "B's command fails, and A's command does not: exit code 1: ValueError: x"),
    ],
)
def test_a_command_that_fails_is_one_line(fails: dict[int, str], message: str) -> None:
    with pytest.raises(InputError) as raised:
        compared(SimulatedArms(fails=fails))
    assert str(raised.value) == message


def test_some_failures_are_survived_and_more_are_not() -> None:
    """B's trials are 1, 2, 5, 6, ..."""
    fails = dict.fromkeys((2, 5), "exit code 1: OSError: network")
    result, _ = compared(SimulatedArms(0.5, fails=fails))
    assert len(fails) == MAX_FAILED - 1
    assert result.judged.verdict.verdict == "worse"
    assert sum(not trial.is_complete for trial in result.evidence.trials) == 2
    with pytest.raises(InputError, match="3 of 4 trials of B failed, the last: exit code 1: OSError: network"):
        compared(SimulatedArms(noise=0.2, fails=fails | {6: "exit code 1: OSError: network"}))


def test_an_interruption_gives_the_verdict_so_far() -> None:
    result, _ = compared(SimulatedArms(0.5, noise=0.05, interrupts_at=3), gate=0.03)
    assert result.ended_by == "interrupted"
    assert isinstance(result.interruption, KeyboardInterrupt)
    assert len(result.evidence.trials) == 3
    assert result.judged.verdict.speedup is None or result.judged.verdict.speedup < 1


def test_an_interruption_before_both_arms_ran_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        compared(SimulatedArms(interrupts_at=1))


@pytest.mark.parametrize(("samples", "objective"), [(64.0, "s_per_sample"), (None, "step_s")])
def test_samples_are_compared_if_both_arms_report_them(samples: float | None, objective: str) -> None:
    result, _ = compared(SimulatedArms(0.3, samples_per_step=samples))
    assert result.evidence.objective == objective


def test_an_objective_that_the_jobs_do_not_report_is_one_line() -> None:
    with pytest.raises(InputError, match="cannot be compared for this objective"):
        compared(SimulatedArms(), objective="peak_memory_bytes")


def evidence_of(trials: list[TrialResult]) -> ComparisonEvidence:
    evidence = ComparisonEvidence(objective="step_s")
    evidence.trials += trials
    return evidence


def test_a_trial_follows_the_times_of_both_arms_and_the_effect_in_question() -> None:
    """Steps of 0.1 and 0.2 s, starts of 10 and 21 s: the medians are 0.15 and 15.5 s, of which 15 % hold 15 steps."""
    times = [(0.1, 10.0), (0.2, 21.0), (0.2, 21.0), (0.1, 10.0)]
    first = [
        trial(index, step_s=(step_s,) * 30, start_s=start_s, took_s=start_s + 30 * step_s)
        for index, (step_s, start_s) in enumerate(times)
    ]
    rule = next_length(evidence_of(first), CompareOptions(), left_s=1e9)
    assert isinstance(rule, StopRule)
    assert (rule.min_s, rule.min_steps, rule.max_s) == (pytest.approx(2.325), 15, pytest.approx(46.5))
    assert (rule.abandon_step_s, rule.accept_step_s) == (None, None)  # neither arm is a reference for the other
    assert next_length(evidence_of(first), CompareOptions(num_steps=7), left_s=1e9) == 7


@pytest.mark.parametrize(("gate", "error"), [(None, 0.2 * 0.03), (0.03, 0.2 * 0.02), (0.1, 0.2 * 0.2 / 3)])
def test_a_trial_is_as_precise_as_the_gate_needs(gate: float | None, error: float) -> None:
    """The power is stated for 5 % at a gate of 3 %: trials have to show a difference of 2 %."""
    rule = next_length(evidence_of([]), CompareOptions(gate=gate), left_s=1e9)
    assert isinstance(rule, StopRule)
    assert rule.relative_error == pytest.approx(error)


class ProfiledArms(SimulatedArms):
    """Arms whose profiles take `profile_s` each, and hold nothing."""

    def __init__(self, slowdown: float, *, profile_s: float = 10.0, noise: float = 0.001) -> None:
        super().__init__(slowdown, noise=noise)
        self.profile_s = profile_s
        self.trials_before_profiles: list[int] = []
        self.profiles: list[str] = []

    def profile(self, arm: ArmName) -> Profiled:
        self.now_s += self.profile_s
        self.profiles.append(arm)
        self.trials_before_profiles.append(self.num_trials)
        diagnosis = SimpleNamespace(ranks=(), blame=())
        done = SimpleNamespace(diagnosis=diagnosis, job=SimpleNamespace(timelines=()))
        return SimpleNamespace(recording=SimpleNamespace(path=""), done=done)  # type: ignore[return-value]


def test_profiles_follow_the_verdict_in_pairs_while_the_budget_lasts() -> None:
    arms = ProfiledArms(0.5)
    alone, _ = compared(ProfiledArms(0.5), num_profiles=0, num_steps=20)
    verdict_s = sum(trial.took_s or 0.0 for trial in alone.evidence.trials)
    result, _ = compared(arms, num_profiles=3, num_steps=20, budget_s=verdict_s + 45)
    assert "".join(arms.profiles) == "ABBA"
    assert set(arms.trials_before_profiles) == {len(alone.evidence.trials)}
    assert result.judged.verdict == alone.judged.verdict
    assert not result.evidence.notes


def test_without_time_for_two_profiles_there_are_none_and_a_note_says_so() -> None:
    alone, _ = compared(ProfiledArms(0.5), num_profiles=0, num_steps=20)
    took_s = [trial.took_s or 0.0 for trial in alone.evidence.trials]
    left_s = 1.9 * sum(took_s) / len(took_s)
    arms = ProfiledArms(0.5)
    result, _ = compared(arms, num_profiles=3, num_steps=20, budget_s=sum(took_s) + left_s)
    assert (result.ended_by, arms.profiles) == ("decided", [])
    assert result.evidence.notes[0].startswith("the trials left no time for profiles")


def test_equivalent_arms_have_nothing_to_explain() -> None:
    arms = ProfiledArms(0.0)
    result, _ = compared(arms, num_profiles=3)
    assert (result.judged.verdict.verdict, arms.profiles) == ("equivalent", [])


@pytest.mark.parametrize(("seed", "is_hopeless"), [(3, True), (7, False)])
def test_a_gate_is_given_up_only_if_no_later_analysis_is_likely_to_decide_it(seed: int, is_hopeless: bool) -> None:
    """B is slower by exactly the gate: after 23 trials, the last analysis decides with 3 % and with 8 % probability."""
    arms = SimulatedArms(0.03, noise=0.02, seed=seed)
    trials = [arms.trial(20) for _ in range(23)]
    assert is_gate_hopeless(trials, objective="step_s", gate=0.03) is is_hopeless
    assert 0.03 < HOPELESS < 0.08


def test_a_gate_far_from_the_truth_is_not_given_up() -> None:
    for slowdown in (0.15, -0.1):
        arms = SimulatedArms(slowdown, noise=0.05, seed=5)
        assert not is_gate_hopeless([arms.trial(20) for _ in range(7)], objective="step_s", gate=0.03)
