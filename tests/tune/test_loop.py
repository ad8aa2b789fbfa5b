"""The loop on jobs whose true speed with each change is known, with the noise of real runs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
from tests.change.jobs import facts
from tests.tune.simulated import BUCKET, SOCKETS, STEP_S, WORKERS, SimulatedRunner, tuner

from flatout.errors import InputError, UsageError
from flatout.records.change import ChangeSet
from flatout.records.trial import BASELINE
from flatout.records.tuning import TuneResult
from flatout.tune.loop import RESERVED_PAIRS, is_better


def adopted(result: TuneResult) -> set[str]:
    return {change.name for change in result.tuning.changes.changes}


def outcomes(result: TuneResult) -> dict[str, str]:
    return {one.name: one.outcome for one in result.tried}


def test_a_good_change_is_adopted_and_the_verdict_is_better() -> None:
    result = tuner(SimulatedRunner({WORKERS: 1.4})).tune()
    assert is_better(result)
    assert adopted(result) == {WORKERS}
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.interval is not None
    assert verdict.interval[0] <= 1.4 <= verdict.interval[1]
    assert result.baseline_step_s == pytest.approx(STEP_S, rel=0.03)
    assert result.tuned_step_s == pytest.approx(STEP_S / 1.4, rel=0.03)
    assert result.why_ended == "no change is left that promises 1 % or more"


@pytest.mark.parametrize("seed", range(5))
def test_two_good_changes_that_fit_together_are_adopted_together(seed: int) -> None:
    result = tuner(SimulatedRunner({WORKERS: 1.3, SOCKETS: 1.5}, seed=seed), max_screened=10).tune()
    assert {WORKERS, SOCKETS} <= adopted(result)
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.verdict == "better" and verdict.interval is not None
    assert verdict.interval[0] <= 1.3 * 1.5 <= verdict.interval[1]
    together = next(one for one in result.tried if one.outcome == "adopted")
    assert set(together.changes) >= {WORKERS, SOCKETS} and together.bound is None


@pytest.mark.parametrize("fault", ["no sync", "half", "frozen"])
def test_an_unsafe_change_is_never_adopted_however_fast(fault: str) -> None:
    runner = SimulatedRunner({SOCKETS: 3.0, WORKERS: 1.3}, faults={SOCKETS: fault})  # type: ignore[dict-item]
    result = tuner(runner, max_screened=10).tune()
    assert outcomes(result)[SOCKETS] == "unsafe"
    assert SOCKETS not in adopted(result) and WORKERS in adopted(result)
    assert runner.names().count(SOCKETS) == 1  # and it is not tried again


def test_what_turns_out_unsafe_in_its_pairs_is_not_adopted() -> None:
    seen: list[int] = []

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        if changes.name != WORKERS:
            return {}
        seen.append(index)
        return {"losses": (1.0,) * 20} if len(seen) == 4 else {}  # the third of its pairs

    result = tuner(SimulatedRunner({WORKERS: 1.4}, ends=ends)).tune()
    assert outcomes(result)[WORKERS] == "unsafe"
    assert not result.tuning.changes.changes and not is_better(result)


def test_of_identical_arms_nothing_is_adopted_in_at_least_18_of_20_tunings() -> None:
    results = [tuner(SimulatedRunner({}, seed=seed)).tune() for seed in range(20)]
    assert sum(not adopted(result) and not is_better(result) for result in results) >= 18


def test_worse_changes_are_not_confirmed_at_all() -> None:
    runner = SimulatedRunner(dict.fromkeys((SOCKETS, WORKERS, BUCKET), 0.7))
    result = tuner(runner).tune()
    assert not adopted(result)


def test_a_command_that_fails_by_itself_is_one_line_with_the_place_of_its_output() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"outcome": "failed", "problem": "exit code 1: ValueError: bad", "step_s": ()} if index == 1 else {}

    with pytest.raises(InputError, match="the command itself does not succeed: exit code 1: ValueError: bad") as caught:
        tuner(SimulatedRunner({}, ends=ends)).tune()
    assert caught.value.hint == "its output is in out/runs/trial-001/output.log"


@pytest.mark.parametrize(
    ("outcome", "problem", "told"),
    [
        ("out_of_memory", "rank 1: OutOfMemoryError", "out of memory"),
        ("failed", "exit code 1", "failed"),
        ("timed_out", "it ran for more than 60 s", "failed"),
        ("failed", "not applied: dataloader: no training process reported it", "not applied"),
    ],
)
def test_a_candidate_that_does_not_run_is_told_and_the_others_go_on(outcome: str, problem: str, told: str) -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"outcome": outcome, "problem": problem, "step_s": ()} if SOCKETS in changes.name else {}

    result = tuner(SimulatedRunner({SOCKETS: 2.0, WORKERS: 1.3}, ends=ends), max_screened=10).tune()
    assert outcomes(result)[SOCKETS] == told
    assert adopted(result) >= {WORKERS} and SOCKETS not in adopted(result)


def test_a_change_that_needs_much_more_memory_is_unsafe() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"peak_memory_bytes": 1300} if SOCKETS in changes.name else {}

    result = tuner(SimulatedRunner({SOCKETS: 2.0}, ends=ends)).tune()
    assert outcomes(result)[SOCKETS] == "unsafe" and not is_better(result)


def test_for_memory_what_saves_most_is_tried_first_and_wins_however_slow_it_is() -> None:
    shares = {"autocast=bfloat16": 0.6, "activation-checkpointing=1": 0.5}

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        return {"peak_memory_bytes": int(1e9 * math.prod(shares.get(change.name, 1) for change in changes.changes))}

    job = facts(has_convolutions=True, is_autocast=False)
    runner = SimulatedRunner({"activation-checkpointing=1": 0.8}, ends=ends, job=job)
    result = tuner(runner, allowed_safety="rounding", objective="peak_memory_bytes", max_screened=2).tune()
    assert runner.names()[:5] == ["baseline"] * 3 + list(reversed(shares))  # memory does not drift
    assert adopted(result) == set(shares)
    assert result.tuning.verdict is not None and result.tuning.verdict.verdict == "better"
    assert result.tuning.verdict.speedup == pytest.approx(1 / 0.3)


@pytest.mark.parametrize("most", range(4, 60, 5))
@pytest.mark.parametrize("speedups", [{}, {WORKERS: 1.4}, {SOCKETS: 1.5, BUCKET: 1.2, WORKERS: 1.3}], ids=len)
def test_no_more_trials_are_made_than_are_allowed(speedups: dict[str, float], most: int) -> None:
    runner = SimulatedRunner(speedups)
    result = tuner(runner, max_trials=most).tune()
    assert len(runner.made) == result.num_trials <= most
    if adopted(result):
        assert result.tuning.verdict is not None


def test_a_budget_that_is_used_up_ends_the_tuning_with_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for trials in (1, 2, 5, 9, 14, 20, 30):
        runner = SimulatedRunner({SOCKETS: 1.5, WORKERS: 1.3})
        monkeypatch.setattr("flatout.tune.loop.time", SimpleNamespace(monotonic=lambda runner=runner: runner.now_s))
        budget_s = trials * 25.0
        result = tuner(runner, budget_s=budget_s).tune()
        assert runner.now_s <= budget_s + 2 * RESERVED_PAIRS * 25.0 + 25.0
        if trials < 20:
            assert "budget" in result.why_ended
        if trials == 30:
            assert is_better(result)


def test_the_final_verdict_rests_on_pairs_newer_than_all_trials_that_chose() -> None:
    """The second change is found in a second round, so the set is judged anew against the job as it came."""

    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        failed: dict[str, object] = {"outcome": "failed", "problem": "exit code 1", "step_s": ()}
        return failed if WORKERS in changes.name and index < 25 else {}

    runner = SimulatedRunner({SOCKETS: 1.5, "dataloader-workers=7": 1.3, WORKERS: 1.3}, between_sd=0.005)
    one = tuner(runner, max_screened=2)
    judged: list[tuple[str, str, int]] = []
    original = one._pairs

    def pairs(candidate: ChangeSet, against: ChangeSet, *, is_final: bool = False):  # type: ignore[no-untyped-def]
        judged.append((candidate.name, against.name, runner.num_trials))
        return original(candidate, against, is_final=is_final)

    one._pairs = pairs  # type: ignore[method-assign]
    result = one.tune()
    assert len({one.round for one in result.tried if one.outcome == "adopted"}) >= 2
    candidate, against, began = judged[-1]
    assert (candidate, against) == (result.tuning.changes.name, BASELINE)
    final = runner.made[began:]
    verdict = result.tuning.verdict
    assert verdict is not None and verdict.verdict == "better"
    assert len(final) == 2 * verdict.num_pairs
    assert {name for name, _ in final} == {candidate, BASELINE}
    arms = ["A" if name == BASELINE else "B" for name, _ in final]
    assert " ".join(a + b for a, b in zip(arms[::2], arms[1::2], strict=True)) == verdict.order


def test_each_confirmation_uses_trials_that_screened_nothing() -> None:
    runner = SimulatedRunner({WORKERS: 1.4})
    result = tuner(runner).tune()
    verdict = result.tuning.verdict
    assert verdict is not None
    used = runner.names()[: runner.names().index(WORKERS) + 1]
    fresh = runner.names()[len(used) :]
    assert fresh.count(WORKERS) >= verdict.num_pairs  # the screened trial is not among them


def test_a_profile_that_fails_after_something_was_adopted_does_not_lose_it() -> None:
    result = tuner(SimulatedRunner({WORKERS: 1.4}, profile_fails_with="the job could not be traced")).tune()
    assert is_better(result) and adopted(result) == {WORKERS}
    assert result.notes == ("what is on now was not profiled again: the job could not be traced",)


def test_baselines_that_fail_beside_the_candidates_end_the_round() -> None:
    def ends(index: int, changes: ChangeSet) -> dict[str, object]:
        failed: dict[str, object] = {"outcome": "failed", "problem": "exit code 1", "step_s": ()}
        return failed if changes.name == BASELINE and index >= 3 else {}

    result = tuner(SimulatedRunner({WORKERS: 1.4}, ends=ends)).tune()
    assert not is_better(result)


def test_an_objective_that_the_job_does_not_show_is_one_line() -> None:
    with pytest.raises(InputError, match="the job cannot be tuned for that: a trial of baseline has no number of"):
        tuner(SimulatedRunner({}), objective="s_per_sample").tune()


def test_samples_a_second_are_tuned_for_where_they_are_known() -> None:
    result = tuner(SimulatedRunner({WORKERS: 1.4}, ends=lambda *_: {"samples_per_step": 32.0})).tune()
    assert result.objective == "s_per_sample" and is_better(result)


def test_a_knob_of_the_users_own_is_tried_too() -> None:
    result = tuner(
        SimulatedRunner({"threads=4": 1.5}), knobs=("threads/exact={2,4}:--threads={}",), max_screened=30
    ).tune()
    assert "threads=4" in adopted(result)
    assert result.tuning.changes.arguments[0].words == (("--threads=4",),)


def test_a_knob_that_is_not_allowed_is_refused() -> None:
    with pytest.raises(UsageError, match="is semantic"):
        tuner(SimulatedRunner({}), knobs=("batch={16}:--batch {}",)).tune()


def test_candidates_that_come_late_are_tried_in_later_rounds() -> None:
    """The user's own knobs have no bound and come last: where nothing before them wins, they still get their turn."""
    runner = SimulatedRunner({"threads=4": 1.5})
    result = tuner(runner, knobs=("threads/exact={2,4}:--threads={}",), max_screened=4, max_rounds=30).tune()
    assert adopted(result) == {"threads=4"}
