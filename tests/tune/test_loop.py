"""The loop on jobs whose true speed with each change is known, with the noise of real runs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable

import msgspec
import pytest
from tests.change.jobs import diagnosis, facts
from tests.trial.training import Fault, changes, losses, trial
from tests.tune.simulated import (
    BUCKET,
    COMMUNICATION,
    FACTS,
    LOADING,
    SOCKETS,
    STEP_S,
    WORKERS,
    SimulatedRunner,
    tuned,
)

from flatout.emit import kubernetes, ray_job
from flatout.errors import InputError
from flatout.records.change import Change, ChangeSet
from flatout.records.prediction import Prediction
from flatout.records.trial import BASELINE, GradientNorms, OutputDigest, TrialResult
from flatout.records.tuning import TuneResult, TuningEnd
from flatout.trial.gates import check_losses
from flatout.tune import arms
from flatout.tune.epoch_check import LOADER_IS_UNCHECKED
from flatout.tune.files import outcomes_of
from flatout.tune.loop import tune
from flatout.tune.options import TuneOptions
from flatout.tune.profiled import CountedProfile, Profiled
from flatout.tune.progress import Applied, Progress, Trial, TuningEvidence
from flatout.tune.result import is_better
from flatout.tune.trials import check_gates


def adopted(result: TuneResult) -> set[str]:
    return {change.name for change in result.tuning.changes.changes}


def outcomes(result: TuneResult) -> dict[str, str]:
    return {one.name: one.outcome for one in result.tried}


DOES_NOT_FIT = "it cannot be combined with the applied changes"


def test_a_good_change_is_adopted_and_the_verdict_is_better() -> None:
    result = tuned(SimulatedRunner({WORKERS: 1.4}))
    assert is_better(result)
    assert adopted(result) == {WORKERS}
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.interval is not None
    assert verdict.interval[0] <= 1.4 <= verdict.interval[1]
    assert result.baseline_step_s == pytest.approx(STEP_S, rel=0.03)
    assert result.tuned_step_s == pytest.approx(STEP_S / 1.4, rel=0.03)
    assert result.end.ended_by == "no_candidates"


@pytest.mark.parametrize("seed", range(5))
def test_two_good_changes_that_fit_together_are_adopted_together(seed: int) -> None:
    result = tuned(SimulatedRunner({WORKERS: 1.3, SOCKETS: 1.5}, seed=seed), max_screened=10)
    assert {WORKERS, SOCKETS} <= adopted(result)
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.verdict == "better" and verdict.interval is not None
    assert verdict.interval[0] <= 1.3 * 1.5 <= verdict.interval[1]
    together = next(one for one in result.tried if one.outcome == "adopted")
    assert set(together.changes) >= {WORKERS, SOCKETS} and together.bound is None


def test_where_other_samples_change_the_losses_loader_changes_are_in_no_set_with_others() -> None:
    """They would hide what the others do to the losses."""
    runner = SimulatedRunner({WORKERS: 1.3, SOCKETS: 1.5}, ends=lambda index, changes: {"loader_workers": 2})
    result = tuned(runner, max_screened=10)
    assert [trial.has_other_samples for _, trial in runner.made[:3]] == [False, True, False]
    assert {WORKERS, SOCKETS} <= adopted(result)
    first = next(one for one in result.tried if one.outcome == "adopted")
    assert not {WORKERS, SOCKETS} <= set(first.changes)


@pytest.mark.parametrize("fault", ["no sync", "half", "frozen"])
def test_an_unsafe_change_is_never_adopted_however_fast(fault: str) -> None:
    runner = SimulatedRunner({SOCKETS: 3.0, WORKERS: 1.3}, faults={SOCKETS: fault})  # type: ignore[dict-item]
    result = tuned(runner, max_screened=10)
    assert outcomes(result)[SOCKETS] == "unsafe"
    assert SOCKETS not in adopted(result) and WORKERS in adopted(result)
    assert runner.names().count(SOCKETS) == 1  # and it is not tried again


@pytest.mark.parametrize("max_norm", [None, 1e-3], ids=["as they are", "clipped"])
@pytest.mark.parametrize("fault", ["no sync", "half", "frozen", "sum for mean", "stale"])
def test_wrong_gradients_are_not_adopted_where_the_learning_rate_is_still_near_zero(
    fault: Fault, max_norm: float | None
) -> None:
    """No loss shows them there."""
    faults = {SOCKETS: fault}
    runner = SimulatedRunner({SOCKETS: 3.0, WORKERS: 1.3}, faults=faults, rate=1e-7, max_norm=max_norm)
    result = tuned(runner, max_screened=10)
    by_change = dict(runner.made)
    assert check_losses(by_change[SOCKETS], [by_change["baseline"]], ChangeSet()).is_passed
    assert outcomes(result)[SOCKETS] == "unsafe"
    assert SOCKETS not in adopted(result) and WORKERS in adopted(result)


def test_what_turns_out_unsafe_in_a_later_trial_is_not_adopted() -> None:
    seen: list[int] = []

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        if changes.name != WORKERS:
            return {}
        seen.append(index)
        return {"losses": (1.0,) * 20} if len(seen) == 2 else {}  # the first after the one that chose it

    result = tuned(SimulatedRunner({WORKERS: 1.4}, ends=ends, costs=LOADING))
    assert outcomes(result)[WORKERS] == "unsafe"
    assert not result.tuning.changes.changes and not is_better(result)


def test_of_identical_arms_nothing_is_adopted_in_at_least_18_of_20_tunings() -> None:
    results = [tuned(SimulatedRunner({}, seed=seed)) for seed in range(20)]
    assert sum(not adopted(result) and not is_better(result) for result in results) >= 18


def test_worse_changes_are_not_confirmed_at_all() -> None:
    runner = SimulatedRunner(dict.fromkeys((SOCKETS, WORKERS, BUCKET), 0.7))
    result = tuned(runner)
    assert not adopted(result)


def test_a_command_that_fails_by_itself_is_one_line_with_the_place_of_its_output() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"outcome": "failed", "problem": "exit code 1: ValueError: bad", "step_s": ()} if index == 1 else {}

    with pytest.raises(InputError, match="the unchanged command fails: exit code 1: ValueError: bad") as caught:
        tuned(SimulatedRunner({}, ends=ends))
    assert caught.value.hint == "its output is in out/runs/trial-001/output.log"


@pytest.mark.parametrize(
    ("cause", "told"),
    [
        ("no_step", "the command cannot be tuned: a sentence"),
        ("too_few_steps", "the command ended too early to be tuned: a sentence"),
        ("error", "the unchanged command fails: a sentence"),
    ],
)
def test_what_a_baseline_failed_by_decides_the_error_however_its_problem_is_worded(cause: str, told: str) -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"outcome": "failed", "cause": cause, "problem": "a sentence", "step_s": ()}

    with pytest.raises(InputError, match=f"^{told}$"):
        tuned(SimulatedRunner({}, ends=ends))


@pytest.mark.parametrize(
    ("outcome", "cause", "told"),
    [
        ("out_of_memory", None, "out of memory"),
        ("failed", "error", "failed"),
        ("failed", "too_few_steps", "failed"),
        ("timed_out", None, "failed"),
        ("failed", "not_applied", "not applied"),
    ],
)
def test_a_candidate_that_does_not_run_is_told_and_the_others_go_on(outcome: str, cause: str | None, told: str) -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return (
            {"outcome": outcome, "cause": cause, "problem": "a sentence", "step_s": ()}
            if SOCKETS in changes.name
            else {}
        )

    result = tuned(SimulatedRunner({SOCKETS: 2.0, WORKERS: 1.3}, ends=ends), max_screened=10)
    assert outcomes(result)[SOCKETS] == told
    assert adopted(result) >= {WORKERS} and SOCKETS not in adopted(result)


def test_a_change_that_needs_much_more_memory_is_unsafe() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"peak_memory_bytes": 1300} if SOCKETS in changes.name else {}

    result = tuned(SimulatedRunner({SOCKETS: 2.0}, ends=ends))
    assert outcomes(result)[SOCKETS] == "unsafe" and not is_better(result)


def test_for_memory_what_saves_most_is_tried_first_and_wins_however_slow_it_is() -> None:
    shares = {"autocast=bfloat16": 0.6, "activation-checkpointing=1": 0.5}

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"peak_memory_bytes": int(1e9 * math.prod(shares.get(change.name, 1) for change in changes.changes))}

    job = facts(has_convolutions=True, is_autocast=False)
    runner = SimulatedRunner({"activation-checkpointing=1": 0.8}, ends=ends, job=job)
    result = tuned(runner, allowed_safety="rounding", objective="peak_memory_bytes", max_screened=2)
    assert runner.names()[:5] == ["baseline"] * 3 + list(reversed(shares))  # memory does not drift
    assert adopted(result) == set(shares)
    assert result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"
    assert result.tuning.verdict.speedup == pytest.approx(1 / 0.3)


@pytest.mark.parametrize("most", range(4, 60, 5))
@pytest.mark.parametrize("speedups", [{}, {WORKERS: 1.4}, {SOCKETS: 1.5, BUCKET: 1.2, WORKERS: 1.3}], ids=len)
def test_no_more_trials_are_made_than_are_allowed(speedups: dict[str, float], most: int) -> None:
    runner = SimulatedRunner(speedups)
    result = tuned(runner, max_trials=most)
    assert len(runner.made) == result.num_trials <= most
    if adopted(result):
        assert result.tuning.verdict is not None


def test_a_budget_that_is_used_up_ends_the_tuning_with_what_was_found() -> None:
    for trials in (1, 2, 5, 9, 14, 20, 30):
        runner = SimulatedRunner({SOCKETS: 1.5, WORKERS: 1.3})
        budget_s = trials * 25.0
        result = tuned(runner, budget_s=budget_s)
        assert runner.now_s <= budget_s + 2.0  # a trial takes 25 s, and up to 3 % more
        assert result.is_cut_short == (result.end.ended_by == "time_budget") == (trials < 14)
        assert is_better(result) == (trials >= 5)


def test_the_final_verdict_is_about_the_unchanged_job_and_rests_on_all_trials_of_both() -> None:
    """The second change is found in a second round, where it is compared with the first."""
    speedups = {SOCKETS: 1.5, BUCKET: 1.3}
    left_over = {"exposed-communication": 0.05}
    runner = SimulatedRunner(speedups, between_sd=0.005, costs=COMMUNICATION, left_over=left_over)
    result = tuned(runner, max_screened=2)
    assert adopted(result) == {SOCKETS, BUCKET}
    assert len({one.round for one in result.tried if one.outcome == "adopted"}) == 2
    step = next(one for one in result.tried if one.name == BUCKET)
    assert step.verdict is not None and step.verdict.speedup == pytest.approx(1.3, rel=0.03)
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.verdict == "better" and verdict.interval is not None
    assert verdict.interval[0] <= 1.5 * 1.3 <= verdict.interval[1]
    counted = [name for name in runner.names() if name in (BASELINE, result.tuning.changes.name)]
    arms = "".join("A" if name == BASELINE else "B" for name in counted)
    assert arms.startswith(verdict.order) and verdict.num_candidates >= 2


def test_the_trial_that_chose_a_candidate_counts_but_is_never_all_there_is() -> None:
    runner = SimulatedRunner({WORKERS: 1.4})
    verdict = tuned(runner).tuning.verdict
    assert verdict is not None and verdict.num_candidates >= 2
    arms = ["B" if name == WORKERS else "A" for name in runner.names() if name in (BASELINE, WORKERS)]
    assert "".join(arms).startswith(verdict.order), "every trial of both arms, in the order in which they ran"


def test_a_profile_that_fails_after_something_was_adopted_does_not_lose_it() -> None:
    result = tuned(SimulatedRunner({WORKERS: 1.4}, profile_fails_with="the job could not be traced", costs=LOADING))
    assert is_better(result) and adopted(result) == {WORKERS}
    assert result.notes == (
        f"{WORKERS} was adopted, and {LOADER_IS_UNCHECKED}",
        "the job with the applied changes could not be profiled again: the job could not be traced",
    )
    assert result.end.ended_by == "not_profiled" and not result.is_cut_short


def test_baselines_that_fail_beside_the_candidates_do_not_count_and_come_to_an_end() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        failed: dict[str, object] = {"outcome": "failed", "problem": "exit code 1", "step_s": ()}
        return failed if changes.name == BASELINE and index >= 3 else {}

    result = tuned(SimulatedRunner({WORKERS: 1.4}, ends=ends, costs=LOADING))
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.num_baselines == 3 and "B" in verdict.order
    nothing = tuned(SimulatedRunner({}, ends=ends))
    assert not is_better(nothing) and nothing.num_trials < 60


def test_baselines_without_a_reading_of_power_end_the_round() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"energy_j_per_step": None if 3 <= index < 12 and not changes.changes else 70.0}

    result = tuned(SimulatedRunner({}, ends=ends), objective="j_per_step")
    assert not is_better(result) and result.end.ended_by == "no_candidates"


def test_an_objective_that_the_job_does_not_show_is_one_line() -> None:
    said = "the job cannot be tuned for this objective: a trial of baseline has no number of"
    with pytest.raises(InputError, match=said) as error:
        tuned(SimulatedRunner({}), objective="s_per_sample")
    assert error.value.hint == "this job reports: steps/s, memory"


def test_samples_a_second_are_tuned_for_where_they_are_known() -> None:
    result = tuned(SimulatedRunner({WORKERS: 1.4}, ends=lambda *_: {"samples_per_step": 32.0}))
    assert result.objective == "s_per_sample" and is_better(result)


def test_a_knob_of_the_users_own_is_tried_too() -> None:
    result = tuned(SimulatedRunner({"threads=4": 1.5}), knobs=("threads/exact={2,4}:--threads={}",), max_screened=30)
    assert "threads=4" in adopted(result)
    assert result.tuning.changes.arguments[0].words == (("--threads=4",),)


def test_candidates_that_come_late_are_tried_in_later_rounds() -> None:
    """The second value of a knob comes after the first ones of all others: it still gets its turn."""
    runner = SimulatedRunner({"threads=4": 1.5})
    result = tuned(runner, knobs=("threads/exact={2,4}:--threads={}",), max_screened=4, max_rounds=30)
    assert adopted(result) == {"threads=4"}


def test_what_the_user_asked_for_is_tried_first() -> None:
    """It has no bound, and would come behind what is known to bring next to nothing: a short budget ends before it."""
    runner = SimulatedRunner({"threads=4": 1.5})
    result = tuned(runner, knobs=("threads/exact={4,2}:--threads={}",), max_screened=2, max_rounds=1)
    assert adopted(result) == {"threads=4"} and is_better(result)


def test_a_knob_of_the_users_own_that_had_no_turn_is_named() -> None:
    knob = "threads/exact={2,4}:--threads={}"
    ended = tuned(SimulatedRunner({}), knobs=(knob,), max_screened=2, max_rounds=1)
    assert {name: outcomes(ended)[name] for name in ("threads=2", "threads=4")} == {
        "threads=2": "not better",
        "threads=4": "not reached",
    }
    assert "it was not tried" in next(one.reason for one in ended.tried if one.name == "threads=4")
    to_its_end = tuned(SimulatedRunner({}), knobs=(knob,), max_screened=2, max_rounds=40)
    assert [one.outcome for one in to_its_end.tried if one.name == "threads=4"] == ["not better"]


def test_another_value_of_an_adopted_knob_may_take_its_place() -> None:
    """There was no time to try both in the first round, and communication still costs."""
    better = "nccl-sockets=4x1+8"
    left_over = {"exposed-communication": 0.05}
    runner = SimulatedRunner({SOCKETS: 1.8, better: 2.3}, left_over=left_over, costs=COMMUNICATION)
    result = tuned(runner, max_screened=4)
    assert adopted(result) == {better} and [one.change.name for one in result.tuning.each] == [better]
    assert outcomes(result)[SOCKETS] == outcomes(result)[better] == "adopted"
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.interval is not None
    assert verdict.interval[0] <= 2.3 <= verdict.interval[1]
    step = next(one for one in result.tried if one.name == better)
    assert step.verdict is not None and step.verdict.speedup == pytest.approx(2.3 / 1.8, rel=0.03)
    assert step.prediction is None, "no model tells what it gains over the value that was on"
    after = runner.names()[runner.names().index(better) :]
    assert f"{SOCKETS} + {better}" not in after


@pytest.mark.usefixtures("nothing_outstanding")
@pytest.mark.parametrize(("second", "last_round"), [(1.2, 1), (1.81, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_a_value_that_was_clearly_worse_has_no_second_turn(second: float, last_round: int, seed: int) -> None:
    values = {SOCKETS: 1.8, "nccl-sockets=4x1+8": second}
    left_over = {"exposed-communication": 0.05}
    result = tuned(SimulatedRunner(values, left_over=left_over, seed=seed, costs=COMMUNICATION), max_screened=30)
    (on,) = adopted(result) & values.keys()
    (other,) = values.keys() - {on}
    (told,) = (one for one in result.tried if one.name == other)
    assert (told.outcome, told.round) == ("not better", last_round)
    assert (f"{on} 1." in told.reason) == (last_round == 1)


@pytest.mark.usefixtures("channels_over_sockets")
def test_what_promises_less_than_was_shown_for_the_same_cause_waits_for_the_next_round() -> None:
    """Three times as fast by sockets: a bucket is tried beside those."""
    speedups = {SOCKETS: 3.0, BUCKET: 1.2}
    runner = SimulatedRunner(speedups, left_over={"exposed-communication": 0.05}, costs=COMMUNICATION)
    result = tuned(runner, max_screened=10)
    confirmed = [place for place, name in enumerate(runner.names()) if name == SOCKETS][1]
    first = runner.names()[:confirmed]
    assert not any(name.startswith(("ddp-bucket", "nccl-buffer", "nccl-channels")) for name in first)
    assert adopted(result) == {SOCKETS, BUCKET}
    (excluded,) = (one for one in result.tried if one.name == "nccl-channels=8")
    assert excluded.outcome == "not reached" and "gained more than this one's estimate" in excluded.reason


@pytest.mark.usefixtures("channels_over_sockets")
def test_what_cannot_be_on_beside_another_one_is_tried_where_it_may_bring_more() -> None:
    """It has no next turn: sockets' 1.4x is more than channels promise, and less than the 1.67x that they may bring."""
    channels = "nccl-channels=8"
    left_over = {"exposed-communication": 0.0}
    runner = SimulatedRunner({SOCKETS: 1.4, channels: 1.65}, left_over=left_over, costs=COMMUNICATION)
    result = tuned(runner, max_screened=10)
    assert channels in adopted(result) and SOCKETS not in adopted(result)


@pytest.mark.parametrize(
    ("gain", "communication", "is_outstanding"), [(1.3, 0.1, True), (1.18, 0.1, False), (1.3, 0.2, False)]
)
def test_what_gains_more_than_any_other_change_promises_is_confirmed_before_they_have_a_trial(
    gain: float, communication: float, is_outstanding: bool
) -> None:
    """The others promise less than 1.25x where communication is 40 % of a step, and more where it is 80 %."""
    left_over = {"exposed-communication": 0.05}
    costs = {"exposed-communication": communication}
    runner = SimulatedRunner({SOCKETS: gain, BUCKET: 1.2}, left_over=left_over, costs=costs)
    result = tuned(runner, max_screened=4)
    second_trial = [place for place, name in enumerate(runner.names()) if name == SOCKETS][1]
    tried_before = set(runner.names()[:second_trial])
    assert (tried_before == {"baseline", SOCKETS}) == is_outstanding
    assert adopted(result) == {SOCKETS, BUCKET}, "what was deferred has its trial in the next round"
    assert outcomes(result)[BUCKET] == "adopted"


def test_a_change_of_the_user_has_its_trial_however_much_another_one_gains() -> None:
    """Nothing says what it may gain."""
    own = "p/exact={2,3}:--pause={}"
    runner = SimulatedRunner({"p=2": 1.6, "p=3": 2.4}, costs=COMMUNICATION)
    result = tuned(runner, knobs=(own,))
    assert adopted(result) >= {"p=3"} and outcomes(result)["p=3"] == "adopted"
    second_trial = [place for place, name in enumerate(runner.names()) if name == "p=3"][1]
    assert "p=2" in runner.names()[:second_trial]


class ComputingRunner(SimulatedRunner):
    """Nearly all of its step is compute, which no finding is about."""

    def profile(self, changes: ChangeSet, counted: CountedProfile | None = None) -> Profiled:
        found = super().profile(changes)
        computing = diagnosis({}, step_s=STEP_S, parts={"compute": 0.2})
        return msgspec.structs.replace(found, done=msgspec.structs.replace(found.done, diagnosis=computing))


@pytest.mark.usefixtures("nothing_outstanding")
def test_changes_that_speed_up_compute_wait_for_no_other() -> None:
    speedups = {"autocast=bfloat16": 2.2, "compile=default": 1.3}
    runner = ComputingRunner(speedups, job=facts(is_autocast=False))
    result = tuned(runner, max_screened=10, allowed_safety="rounding")
    together = next(one for one in result.tried if one.outcome == "adopted")
    assert together.round == 1 and speedups.keys() <= set(together.changes) <= adopted(result)


def _predict(speedup: float, high: float, but: str = "") -> Callable[..., dict[str, Prediction]]:
    def predict_all(job: object, found: list[Change], *_: object, **__: object) -> dict[str, Prediction]:
        return {
            one.name: Prediction(change=one.name, family=one.family, speedup=speedup, low=0.5, high=high, how="")
            for one in found
            if one.name != but
        }

    return predict_all


@pytest.mark.parametrize("fast", ["threads=4", SOCKETS])
def test_a_set_with_a_change_that_has_no_model_has_no_prediction(fast: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument of the script: whatever it brings is in what is measured of the set."""
    made = Prediction(change="", family="", speedup=1.5, low=1.4, high=1.6, how="")
    monkeypatch.setattr("flatout.tune.choose.predict_all", _predict(1.5, 1.6, but="threads=4"))
    monkeypatch.setattr("flatout.tune.choose.situation_of", lambda *_: object())
    monkeypatch.setattr("flatout.tune.choose.best_bucket_mib", lambda _: None)
    monkeypatch.setattr("flatout.tune.choose.best_first_bucket_mib", lambda _: None)
    monkeypatch.setattr("flatout.tune.tried.predict_together", lambda *_: made)
    result = tuned(SimulatedRunner({WORKERS: 1.3, fast: 1.5}), knobs=("threads/exact={4}:--threads={}",))
    (both,) = (one for one in result.tried if one.outcome == "adopted" and {WORKERS, fast} <= set(one.changes))
    assert both.prediction == (made if fast == SOCKETS else None)


def test_what_is_predicted_to_be_slower_waits_for_nothing_that_was_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flatout.tune.choose.predict_all", _predict(0.9, 1.0))
    runner = SimulatedRunner({})
    result = tuned(runner, max_screened=10)
    assert result.end.ended_by == "no_candidates"
    assert not [one for one in result.tried if one.outcome == "not reached"]
    assert {one.name for one in result.tried} <= set(runner.names())


class RoundsRunner(SimulatedRunner):
    """Keeps what was screened in which round. In screening, 3x by sockets; in confirmation, nothing."""

    def __init__(self) -> None:
        super().__init__({}, between_sd=0.0, costs=COMMUNICATION)
        self.screened: list[tuple[str, str]] = []

    def trial(self, changes: ChangeSet, num_steps: int, place: str = "", *, other_samples: bool = False) -> TrialResult:
        made = super().trial(changes, num_steps)
        if place.endswith("confirmation") or changes.name == BASELINE:
            return made
        self.screened.append((place, changes.name))
        speedup = 3.0 if changes.name == SOCKETS else 1.0
        return msgspec.structs.replace(made, step_s=tuple(step / speedup for step in made.step_s))


def test_what_waited_has_one_turn_where_pairs_do_not_bear_out_what_it_waited_for() -> None:
    runner = RoundsRunner()
    result = tuned(runner, max_screened=30)
    assert result.end.ended_by == "no_candidates"
    by_bucket = [place for place, name in runner.screened if name == BUCKET]
    assert by_bucket == ["round 2"]
    alone = [name for _, name in runner.screened if " + " not in name]
    assert len(alone) == len(set(alone))
    assert not [one for one in result.tried if "it waited" in one.reason]


def neutral(result: TuneResult, *good: str) -> set[str]:
    return adopted(result) - set(good)


def test_a_change_that_brings_nothing_does_not_ride_along() -> None:
    """With 1 % noise between runs, one of eight neutral candidates shows 2 % in its own trial in most tunings."""
    results = [tuned(SimulatedRunner({WORKERS: 1.3, SOCKETS: 1.5}, seed=seed), max_screened=10) for seed in range(10)]
    assert all({WORKERS, SOCKETS} <= adopted(result) for result in results)
    assert sum(len(neutral(result, WORKERS, SOCKETS)) for result in results) <= 1


def test_what_is_confirmed_only_together_with_others_and_was_no_better_than_noise_is_marked() -> None:
    """Neither of two arguments is beyond the noise alone; together they make the job much faster."""
    both = {"threads=4", "width=2"}

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"step_s": (0.17,) * 20} if both <= {one.name for one in changes.changes} else {}

    runner = SimulatedRunner(dict.fromkeys(both, 1.05), ends=ends, costs=LOADING)
    knobs = ("threads/exact={4}:--threads={}", "width/exact={2}:--width={}")
    result = tuned(runner, knobs=knobs, max_screened=2, max_rounds=1)
    assert adopted(result) == both
    assert {one.change.name: one.is_shown_alone for one in result.tuning.each} == dict.fromkeys(both, False)


def test_the_error_rate_of_claims_is_divided_among_rounds_and_among_the_sets_of_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One of many candidates looks better by chance: half of the error rate is for the first round, and so on."""
    divisors: dict[str, int] = {}
    original = arms.judge_arms

    def judge(trials, candidate, *, baseline, num_screened, **others):  # type: ignore[no-untyped-def]
        assert baseline == BASELINE, "nothing was adopted"
        divisors.setdefault(candidate, num_screened)
        return original(trials, candidate, baseline=baseline, num_screened=num_screened, **others)

    monkeypatch.setattr(arms, "judge_arms", judge)
    for seed in range(6):
        runner = SimulatedRunner({}, seed=seed, between_sd=0.03, costs=COMMUNICATION)
        result = tuned(runner, max_screened=3)
        rounds = {one.name: one.round for one in result.tried}
        num_tried = Counter(rounds[name] for name in set(runner.names()) & rounds.keys())
        assert divisors == {name: num_tried[rounds[name]] * 2 ** rounds[name] for name in divisors}
        divisors.clear()


def test_an_exact_change_is_held_to_float_noise_also_where_a_lenient_one_is_on() -> None:
    """More workers may draw other samples; what is added to them may not, and a rank left out hides among those."""
    spread = [trial(losses(resample_seed=seed, num_steps=20), index=seed) for seed in range(3)]
    on = losses(resample_seed=7, num_steps=20)
    workers, wrong = changes(family="dataloader").changes[0], changes(family="ddp").changes[0]
    current = [trial(on, index=10 + number) for number in range(4)]
    known = progress_of(spread, workers, current)
    made = ChangeSet(changes=(workers, wrong))
    assert check_gates(known, trial(on, index=20), made).is_passed
    left_out = trial(losses("one rank left out", resample_seed=7, num_steps=20), index=21)
    assert check_losses(left_out, spread, made).is_passed  # against the job as it came alone
    gate = check_gates(known, left_out, made)
    assert not gate.is_passed and gate.reason.startswith(
        "compared with the applied changes: the first 5 losses differ by"
    )


def test_a_tuning_compares_the_outputs_of_a_job_that_only_infers() -> None:
    """With the unchanged job, and where changes are applied, with these."""

    def of_entries(first: float, index: int) -> TrialResult:
        outputs = (OutputDigest(call=1, shape=(2,), norm=first, entries=(first, 1.0)),)
        return msgspec.structs.replace(trial((), index=index), model_outputs=outputs)

    applied, added = changes("rounding", family="autocast").changes[0], changes(family="ddp").changes[0]
    plain = [of_entries(1.0, index) for index in range(3)]
    known = progress_of(plain, applied, [of_entries(1.02, 10 + index) for index in range(3)])
    both = ChangeSet(changes=(applied, added))
    assert check_gates(known, of_entries(1.02, 20), both).is_passed
    near, far = check_gates(known, of_entries(1.03, 21), both), check_gates(known, of_entries(1.1, 22), both)
    assert not near.is_passed
    assert near.reason.startswith("compared with the applied changes: its outputs differ by")
    assert not far.is_passed
    assert far.reason.startswith("its outputs differ by")


def progress_of(baselines: list[TrialResult], applied: Change, current: list[TrialResult]) -> Progress:
    """What a tuning knows with these trials of the unchanged job and of an applied change."""
    on = ChangeSet(changes=(applied,))
    trials = [Trial(changes=ChangeSet(), result=one) for one in baselines]
    trials += [Trial(changes=on, result=one) for one in current]
    return Progress(
        objective="step_s", num_steps=20, evidence=TuningEvidence(trials=tuple(trials)), applied=Applied(changes=on)
    )


def test_gradients_are_held_against_those_of_what_is_on_too() -> None:
    """What is on may round, and a fifth of the norm hides in its band."""
    rounds, wrong = changes("rounding", "kernels").changes[0], changes(family="ddp").changes[0]
    flat = losses(rate=0.0)

    def of_norm(norm: float, index: int) -> TrialResult:
        norms = GradientNorms(num_parameters=1, norms=(norm,) * 5)
        return trial(flat, index=index, gradients=(norms,))

    known = progress_of([of_norm(1.0, index) for index in range(3)], rounds, [of_norm(0.98, 3)])
    made = ChangeSet(changes=(rounds, wrong))
    assert check_gates(known, of_norm(0.98, 4), made).is_passed
    gate = check_gates(known, of_norm(1.04, 5), made)
    assert not gate.is_passed
    assert gate.reason.startswith("compared with the applied changes: the norm of its first gradients is 1.061 times")


def test_a_budget_that_ends_within_the_first_trial_is_no_fault_of_the_command() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"outcome": "timed_out", "problem": "it ran for more than 30 s, and was ended", "step_s": ()}

    result = tuned(SimulatedRunner({}, ends=ends, start_s=30.0), budget_s=20.0)
    assert result.end == TuningEnd(ended_by="time_budget", limit=20.0, interrupts="noise_floor")
    assert not is_better(result) and result.floor is None


def test_what_the_objective_lacks_is_told_after_one_trial() -> None:
    runner = SimulatedRunner({})
    with pytest.raises(InputError, match="has no energy"):
        tuned(runner, objective="j_per_sample")
    assert runner.num_trials == 1


def test_steps_of_fewer_samples_do_not_win_by_steps_a_second() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"samples_per_step": 8.0 if "batch=4" in changes.name else 32.0}

    options = {"knobs": ("batch={4}:--batch={}",), "allowed_safety": "semantic", "objective": "step_s"}
    result = tuned(SimulatedRunner({"batch=4": 3.0}, ends=ends), max_screened=30, **options)
    assert outcomes(result)["batch=4"] == "failed"
    assert "steps/s does not compare them" in next(one.reason for one in result.tried if one.name == "batch=4")


def test_a_knob_that_turns_out_semantic_is_left_out_and_the_others_go_on() -> None:
    """Whether the model has batch norm is known only when the job has run."""
    knob = "micro*accumulate={8*4,16*2}:--batch={} --accumulate={}"
    result = tuned(SimulatedRunner({WORKERS: 1.4}, job=facts(has_batch_norm=True)), knobs=(knob,))
    assert adopted(result) == {WORKERS}
    assert sum("micro*accumulate" in note and "not tried" in note for note in result.notes) == 1


def test_the_band_of_changes_that_round_is_said_where_one_was_tried() -> None:
    assert not tuned(SimulatedRunner({SOCKETS: 1.4}, costs=COMMUNICATION)).notes
    result = tuned(SimulatedRunner({}), allowed_safety="rounding", max_screened=40)
    assert any(one.safety == "rounding" for one in result.tried)
    assert any("2.0 % over all steps" in note for note in result.notes)


def test_predictions_of_all_that_was_screened_are_kept_with_what_came_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loser too, and with the noise of one trial: 1 % between runs, and 3 % a step of 20."""

    def predict_all(job: object, found: list[Change], *_: object, **__: object) -> dict[str, Prediction]:
        return {
            one.name: Prediction(change=one.name, family=one.family, speedup=1.5, low=1.4, high=1.6, how="")
            for one in found
        }

    monkeypatch.setattr("flatout.tune.choose.predict_all", predict_all)
    result = tuned(SimulatedRunner({SOCKETS: 1.5, WORKERS: 0.8}))
    first = {one.prediction.change: one for one in reversed(result.screened)}
    assert first[SOCKETS].speedup == pytest.approx(1.5, rel=0.06)
    assert first[WORKERS].speedup == pytest.approx(0.8, rel=0.06)
    assert outcomes(result)[WORKERS] == "not better"
    assert all(0.002 < one.sd < 0.08 for one in result.screened)
    learned = {one.change: one for one in outcomes_of(result)}
    assert learned[WORKERS].measured == pytest.approx(0.8, rel=0.06) and learned[WORKERS].sd > 0


@pytest.mark.parametrize("most", range(12, 34, 2))
def test_every_candidate_is_accounted_for_wherever_the_budget_ends(most: int) -> None:
    runner = SimulatedRunner({WORKERS: 1.3, SOCKETS: 1.5, BUCKET: 0.9})
    result = tuned(runner, max_trials=most, max_screened=10)
    run = {name for arm in runner.names() if arm != BASELINE for name in arm.split(" + ")}
    assert run
    assert run <= {name for one in result.tried for name in one.changes}
    run |= set(runner.names())  # also as sets
    open_ones = [one for one in result.tried if one.outcome == "not reached"]
    others = {name for one in result.tried if one.outcome != "not reached" for name in one.changes}
    assert not others & {one.name for one in open_ones}
    for one in open_ones:
        is_untried = one.reason in ("it was not tried", DOES_NOT_FIT) or "for the same cause" in one.reason
        assert (one.name not in run) == is_untried
        assert (one.screened is not None) == ("no pairs were run" in one.reason)


class StallingRunner(SimulatedRunner):
    """One of its trials takes all the time there is."""

    def __init__(self, at: int) -> None:
        super().__init__({WORKERS: 1.3, SOCKETS: 1.5})
        self._at = at

    def spent_s(self) -> float:
        return self.now_s + (1e6 if self.num_trials > self._at else 0.0)


def test_a_change_whose_confirmation_the_budget_cut_at_once_is_not_reached_rather_than_not_confirmed() -> None:
    """Whichever trial the budget ends at, in some tunings that is the first of a confirmation."""
    num_cut = 0
    for at in range(4, 16):
        told: list[str] = []
        options = TuneOptions(num_steps=20, max_screened=4, budget_s=1e6)
        result = tune(StallingRunner(at), options, told.append)  # type: ignore[arg-type]
        rows = [one for one in result.tried if one.verdict is not None and one.outcome != "not reached"]
        assert all(one.verdict.num_candidates >= 2 for one in rows if one.verdict is not None)
        if any(": confirming" in line for line in told) and not rows:
            num_cut += 1
            assert {one.outcome for one in result.tried if one.name in (WORKERS, SOCKETS)} == {"not reached"}
    assert num_cut


def test_files_for_several_hosts_ask_for_the_gpus_of_one() -> None:
    """The job has two hosts with two ranks each: what a real tuning knows of its machine is enough for its files."""
    job = msgspec.structs.replace(FACTS, device="cuda", num_ranks=4, num_hosts=2, ranks_per_host=2)
    made = tuned(SimulatedRunner({SOCKETS: 1.5}, job=job)).tuning
    made = msgspec.structs.replace(made, machine={**made.machine, "device": "NVIDIA H200"})
    assert "nvidia.com/gpu: 2" in kubernetes.emit(made).text
    assert json.loads(ray_job.emit(made).text)["entrypoint_num_gpus"] == 2


def test_an_argument_and_our_own_change_of_the_loaders_workers_are_not_tried_together() -> None:
    """Ours would undo what the argument did, and the two together be ours alone under a wrong name."""

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"loader_workers": 4 if "workers=4" in changes.name else 0}

    runner = SimulatedRunner({"workers=4": 1.6, WORKERS: 1.5, SOCKETS: 1.3}, ends=ends, between_sd=0.003)
    result = tuned(runner, knobs=("workers/exact={4}:--workers={}",), max_screened=30)
    assert adopted(result) >= {"workers=4", SOCKETS}
    first = runner.names()[: runner.names().index(next(name for name in runner.names() if " + " in name)) + 1]
    assert "workers=4" in first[-1] and WORKERS not in first[-1]


def test_what_is_plain_is_confirmed_before_changes_for_another_cause_have_a_trial() -> None:
    """A loader's change promises 1.05x; only changes for the same cause would be deferred without this rule."""
    costs = {"exposed-communication": 0.1, "data-loading": 0.01}
    runner = SimulatedRunner({SOCKETS: 1.5, WORKERS: 1.04}, costs=costs)
    result = tuned(runner, max_screened=6)
    second_trial = [place for place, name in enumerate(runner.names()) if name == SOCKETS][1]
    assert not any("dataloader" in name for name in runner.names()[:second_trial])
    assert any("dataloader" in name for name in runner.names()[second_trial:]), "they have theirs in the next round"
    assert SOCKETS in adopted(result)
