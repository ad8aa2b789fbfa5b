"""What a budget is good for: verdicts in few trials, what is said before and after them, and Ctrl-C."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from tests.tune.simulated import COMMUNICATION, LOADING, SOCKETS, WORKERS, SimulatedRunner, tuned

from flatout.records.change import ChangeSet
from flatout.records.stop_rule import StopRule
from flatout.records.trial import TrialResult
from flatout.report.outlook_phrases import probability
from flatout.report.tuning_phrases import headline
from flatout.tune.loop import tune
from flatout.tune.options import TuneOptions
from flatout.tune.result import is_better

TRIAL_S = 25.0


@pytest.fixture(autouse=True)
def _nothing_is_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    from flatout.records.prediction import NoPrediction

    nothing = NoPrediction(change="", family="", reason="it is simulated")
    monkeypatch.setattr("flatout.tune.choose.predict_all", lambda *_, **__: {})
    monkeypatch.setattr("flatout.tune.choose.situation_of", lambda *_, **__: nothing)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("noise", "speedup"), [(0.01, 1.5), (0.05, 2.0), (0.1, 3.0)])
def test_three_trials_of_each_arm_end_in_a_verdict_for_a_large_effect(noise: float, speedup: float, seed: int) -> None:
    runner = SimulatedRunner({WORKERS: speedup}, seed=seed, between_sd=noise, costs=LOADING)
    result = tuned(runner, budget_s=7 * TRIAL_S)
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.verdict == "better" and verdict.interval is not None
    assert verdict.interval[0] <= speedup <= verdict.interval[1]
    assert verdict.num_candidates <= 4


def test_what_the_budget_can_show_is_said_before_the_first_trial_and_after_it() -> None:
    told: list[str] = []
    runner = SimulatedRunner({}, costs=LOADING)
    tune(runner, TuneOptions(num_steps=20, budget_s=300.0), told.append)  # type: ignore[arg-type]
    before, after, noise = (line for line in told if "trial" in line and "round" not in line)
    assert "within 300 s" in before and "2x takes" in before and "30 % takes" in before and "5.0 % takes" in before
    assert after.startswith("a trial: 20.0 s to start, ") and "to measure" in after
    assert "the budget shows a gain of" in noise


def test_a_change_that_the_budget_leaves_undecided_is_in_the_headline_with_what_more_time_would_buy() -> None:
    runner = SimulatedRunner({WORKERS: 3.0}, costs=LOADING)
    result = tuned(runner, budget_s=3 * TRIAL_S + 1)
    assert not is_better(result)
    (one,) = (tried for tried in result.tried if tried.name == WORKERS)
    assert one.more is not None and one.more.num_trials == 2 and one.more.probability > 0.5
    text = headline(result)
    assert re.match(rf"undecided: {WORKERS} looks [23]\.", text) and "2 more trials (" in text
    assert "no change" not in text.lower()


@pytest.mark.parametrize("interrupted_at", range(1, 7))
def test_ctrl_c_at_any_trial_ends_with_the_best_verdict_so_far(interrupted_at: int) -> None:
    class Interrupted(SimulatedRunner):
        def trial(
            self, changes: ChangeSet, length: StopRule | int, place: str = "", *, other_samples: bool = False
        ) -> TrialResult:
            if self.num_trials == interrupted_at:
                raise KeyboardInterrupt
            assert isinstance(length, int)
            return super().trial(changes, length, place)

    runner = Interrupted({WORKERS: 2.0}, costs=LOADING)
    result = tuned(runner)
    assert result.num_trials == interrupted_at
    if result.end.ended_by == "interrupted":
        assert result.is_cut_short
    assert is_better(result) == (interrupted_at >= 6), "three trials of the baseline, one that chooses, two more"


def test_ctrl_c_before_anything_was_measured_has_no_result() -> None:
    class Interrupted(SimulatedRunner):
        def trial(
            self, changes: ChangeSet, length: StopRule | int, place: str = "", *, other_samples: bool = False
        ) -> TrialResult:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(Interrupted({}))


@pytest.mark.parametrize("seed", range(4))
def test_of_a_bundle_what_brings_nothing_is_dropped_when_it_is_taken_apart(seed: int) -> None:
    runner = SimulatedRunner({WORKERS: 1.0, SOCKETS: 1.9}, seed=seed)
    result = tuned(runner, max_rounds=1)
    assert runner.names()[3] == f"{SOCKETS} + {WORKERS}", "they do not interact, and are tried together first"
    assert [change.name for change in result.tuning.changes.changes] == [SOCKETS]
    (each,) = result.tuning.each
    assert each.had_own_trial and each.verdict is not None and each.verdict == result.tuning.verdict


def test_a_bundle_that_gains_what_was_estimated_is_kept_and_each_change_was_shown() -> None:
    runner = SimulatedRunner({WORKERS: 1.4, SOCKETS: 1.6})
    result = tuned(runner, max_rounds=1)
    assert {change.name for change in result.tuning.changes.changes} == {SOCKETS, WORKERS}
    assert all(each.had_own_trial for each in result.tuning.each)
    assert len(runner.names()) <= 8


@pytest.mark.usefixtures("nothing_outstanding")
def test_a_bundle_that_disappoints_is_taken_apart_before_it_is_confirmed() -> None:
    runner = SimulatedRunner({WORKERS: 0.6, SOCKETS: 1.7})
    result = tuned(runner, max_rounds=1)
    names = runner.names()
    assert names.count(f"{SOCKETS} + {WORKERS}") == 1
    assert {SOCKETS, WORKERS} <= set(names)
    assert [change.name for change in result.tuning.changes.changes] == [SOCKETS]


@pytest.mark.parametrize(("num_left_after", "is_alone"), [(6, True), (5, False)])
def test_a_bundle_that_disappoints_is_confirmed_if_its_parts_would_take_too_many_trials(
    num_left_after: int, is_alone: bool
) -> None:
    """Two changes alone, and four trials to confirm the better one, are six; three trials ran before."""
    runner = SimulatedRunner({WORKERS: 1.0, SOCKETS: 1.25}, between_sd=0.002, step_sd=0.005)
    result = tuned(runner, max_trials=3 + num_left_after, max_rounds=1)
    assert runner.names()[:3] == ["baseline", "baseline", f"{SOCKETS} + {WORKERS}"]
    assert (SOCKETS in runner.names()[:6]) == is_alone
    assert is_better(result)


def test_nothing_to_gain_ends_early() -> None:
    lengths = []
    for seed in range(5):
        runner = SimulatedRunner({}, seed=seed, between_sd=0.05, costs=COMMUNICATION)
        result = tuned(runner, max_screened=4, max_rounds=1)
        assert not is_better(result)
        lengths.append(len(runner.names()))
    assert sum(lengths) / len(lengths) < 20


@pytest.mark.parametrize(("value", "text"), [(0.985, "98 %"), (0.9951, "more than 99 %"), (0.5, "50 %")])
def test_a_probability_is_never_certain(value: float, text: str) -> None:
    assert probability(value) == text
    assert not re.search(r"100 %", probability(math.nextafter(1.0, 0.0)))


class StartsFast(SimulatedRunner):
    """A job whose candidate starts in 10 s, where its other starts take 50 s: its workers are forked, not spawned."""

    def trial(self, changes: ChangeSet, num_steps: int, place: str = "", *, other_samples: bool = False) -> TrialResult:
        began_s = self.now_s
        found = super().trial(changes, num_steps, place, other_samples=other_samples)
        took_s = 10.0 if changes.changes else 50.0
        self.now_s, self.usual_s = began_s + took_s, 50.0
        found = msgspec.structs.replace(found, took_s=took_s)
        self.made[-1] = (changes.name, found)
        return found


@pytest.mark.parametrize(("budget_s", "arms"), [(171.0, "AABAB"), (169.0, "AABB"), (149.0, "AA")])
def test_the_last_trials_are_of_the_arm_that_still_fits(budget_s: float, arms: str) -> None:
    """Two baselines and a candidate end at 110 s: 61 s hold one more of each, and 59 s only candidates."""
    runner = StartsFast({WORKERS: 4.0}, costs=LOADING)
    result = tuned(runner, budget_s=budget_s, max_rounds=1)
    assert "".join("B" if name == WORKERS else "A" for name in runner.names()) == arms
    assert is_better(result) == (arms != "AA")
