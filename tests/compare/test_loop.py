"""The comparison itself, on simulated trials: what it ends with, and when it stops."""

from __future__ import annotations

import math

import pytest
from tests.compare.simulated import SimulatedArms
from tests.verdict.trials import trial

from flatout.compare.evidence import Evidence
from flatout.compare.judge import HOPELESS, is_gate_hopeless, judged
from flatout.compare.loop import MAX_FAILED, Compared, _num_steps, _reserved_s, compare
from flatout.compare.options import CompareOptions
from flatout.errors import InputError


def compared(arms: SimulatedArms, **options: object) -> tuple[Compared, list[str]]:
    said: list[str] = []
    asked = {"num_profiles": 0, "budget_s": 1e9} | options
    return compare(arms, CompareOptions(**asked), said.append), said  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("slowdown", "verdict", "outcome"),
    [(0.25, "worse", "failed"), (-0.2, "better", "passed"), (0.0, "equivalent", "passed"), (0.015, "worse", "passed")],
)
def test_the_verdict_and_the_gate_of_a_known_slowdown(slowdown: float, verdict: str, outcome: str) -> None:
    result, _ = compared(SimulatedArms(slowdown, noise=0.001), gate=0.03)
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
    """A trial takes 5 s to start and 5 s of steps: 50 s allow four, and a fifth of them is kept for profiles."""
    result, _ = compared(SimulatedArms(noise=0.002), budget_s=5 * trial_s)
    assert result.ended_by == ended_by
    if ended_by == "time_budget":
        assert len(result.evidence.trials) < 8


def test_the_maximum_number_of_trials_ends_it() -> None:
    result, _ = compared(SimulatedArms(noise=0.2), max_trials=6)
    assert (result.ended_by, len(result.evidence.trials)) == ("trial_budget", 6)
    assert result.judged.verdict.verdict == "undecided"


def test_without_a_decision_it_ends_at_the_last_analysis() -> None:
    result, _ = compared(SimulatedArms(noise=0.1, seed=2))
    assert result.ended_by == "last_analysis"
    assert result.judged.verdict.num_candidates == 20


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


@pytest.mark.parametrize(
    ("step_s", "start_s", "num_steps"),
    [
        (0.1, 0.0, 30),  # as many as in the first trial
        (0.1, 5.0, 50),  # as long as the start takes
        (0.001, 5.0, 200),  # not more
        (0.5, 60.0, 40),  # 20 s at most
        (5.0, 60.0, 12),  # but 12 steps at least
    ],
)
def test_the_length_of_a_trial_follows_its_start_and_its_steps(step_s: float, start_s: float, num_steps: int) -> None:
    first = [trial(index, step_s=(step_s,) * 30, start_s=start_s) for index in (0, 1)]
    assert _num_steps(first, CompareOptions()) == num_steps
    assert _num_steps(first[:1], CompareOptions()) == 30
    assert _num_steps(first, CompareOptions(num_steps=7)) == 7


def test_a_fifth_of_the_budget_is_kept_for_profiles() -> None:
    """Three profiles of each arm take as long as six trials of 10 s: 20 s of 100 s, but all 60 s of 400 s."""
    evidence = Evidence(objective=None)
    evidence.trials.append(trial(0, took_s=10.0))
    assert _reserved_s(evidence, CompareOptions(budget_s=100.0)) == pytest.approx(20)
    assert _reserved_s(evidence, CompareOptions(budget_s=400.0)) == pytest.approx(60)
    assert _reserved_s(evidence, CompareOptions(budget_s=400.0, num_profiles=0)) == 0


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
