"""A round narrowed by blocks within one job: what is of no use has no trial, and what is left is ordered by them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.tune.simulated import LOADING, WORKERS, SimulatedRunner, tuned

from flatout.errors import FlatoutError
from flatout.records.blocks import BlockResult
from flatout.records.change import ChangeSet
from flatout.records.tuning import TuneResult
from flatout.tune import block_screening as module
from flatout.tune.block_screening import in_words

Results = Mapping[str, dict[str, Any]]


class Blocks:
    """In place of a run with blocks: knows what they would show, and what they were asked for."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, results: Results, *, fails_with: Exception | None = None
    ) -> None:
        self.results = dict(results)
        self.fails_with = fails_with
        self.asked: list[list[str]] = []
        self.limits: list[tuple[float, float]] = []
        monkeypatch.setattr(module, "run_blocks", self.run)

    def run(
        self, runner: object, candidates: Sequence[ChangeSet], *, start_s: float, max_s: float, **more: Any
    ) -> tuple[BlockResult, ...]:
        self.asked.append([candidate.name for candidate in candidates])
        self.limits.append((start_s, max_s))
        if self.fails_with is not None:
            raise self.fails_with
        undecided = {
            "verdict": "undecided",
            "reason": "the interval includes 1",
            "speedup": 1.0,
            "interval": (0.9, 1.1),
        }
        return tuple(
            BlockResult(arm=candidate.name, num_blocks=32, **{**undecided, **self.results.get(candidate.name, {})})
            for candidate in candidates
        )


SEVEN, THREE = "dataloader-workers=7", "dataloader-workers=3"


def job(*, start_s: float = 100.0, gain: float = 1.3) -> SimulatedRunner:
    """A job that loads its data too slowly: all candidates are settings of its loader, which can be switched."""
    return SimulatedRunner({WORKERS: gain}, start_s=start_s, between_sd=0.0, step_sd=0.0, costs=LOADING)


def outcomes(result: TuneResult) -> dict[str, str]:
    return {tried.name: tried.reason for tried in result.tried}


BETTER = {"verdict": "better", "speedup": 1.3, "interval": (1.2, 1.4)}
WORSE = {"verdict": "worse", "speedup": 0.9, "interval": (0.88, 0.92)}


def test_without_the_option_no_job_runs_with_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks(monkeypatch, {})
    tuned(job())
    assert blocks.asked == []


def test_what_is_worse_or_equivalent_in_blocks_has_no_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    equivalent = {"verdict": "equivalent", "speedup": 1.001, "interval": (0.997, 1.005)}
    Blocks(monkeypatch, {SEVEN: WORSE, THREE: equivalent, WORKERS: BETTER})
    runner = job()
    result = tuned(runner, blocks=True)
    tried = {name for arm in runner.names() for name in arm.split(" + ")}
    assert WORKERS in tried
    assert not tried & {SEVEN, THREE}
    assert outcomes(result)[SEVEN] == "0.90x (0.88-0.92) in 32 blocks within one job"


def test_what_is_better_in_blocks_is_still_confirmed_by_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    Blocks(monkeypatch, {SEVEN: {**BETTER, "speedup": 3.0, "interval": (2.9, 3.1)}})
    runner = job()
    result = tuned(runner, blocks=True)
    assert any(SEVEN in arm for arm in runner.names())
    assert SEVEN not in {change.name for change in result.tuning.changes.changes}  # its trials are slower


@pytest.mark.usefixtures("nothing_outstanding")
@pytest.mark.parametrize(("speedup", "has_trial"), [(0.79, False), (0.81, True)])
def test_a_change_that_was_dropped_as_clearly_slower_has_no_trial(
    monkeypatch: pytest.MonkeyPatch, speedup: float, has_trial: bool
) -> None:
    Blocks(monkeypatch, {SEVEN: {"speedup": speedup, "interval": None}})
    runner = job()
    tuned(runner, blocks=True)
    assert any(SEVEN in arm.split(" + ") for arm in runner.names()) == has_trial


@pytest.mark.parametrize(("start_s", "is_worth_it"), [(34.9, False), (35.0, True)])
def test_blocks_are_run_only_if_four_units_take_no_longer_than_a_trial(
    monkeypatch: pytest.MonkeyPatch, start_s: float, is_worth_it: bool
) -> None:
    """A step takes 0.25 s, so four units of four blocks of ten steps take 40 s, as a trial that counts 5 s of steps."""
    blocks = Blocks(monkeypatch, {})
    tuned(job(start_s=start_s, gain=1.0), blocks=True)
    assert bool(blocks.asked) == is_worth_it


def test_blocks_take_no_more_than_trials_or_a_quarter_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks(monkeypatch, {})
    tuned(job(), blocks=True)
    start_s, max_s = blocks.limits[0]
    assert start_s == pytest.approx(105)
    assert max_s == pytest.approx(105 * len(blocks.asked[0]))
    tuned(job(), blocks=True, budget_s=2500.0)
    assert blocks.limits[-1][1] <= 0.25 * 2500


def test_one_change_alone_is_tried_in_a_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks(monkeypatch, {})
    tuned(job(), blocks=True, max_screened=1)
    assert blocks.asked == []


def test_the_objective_must_be_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks(monkeypatch, {})
    tuned(job(), blocks=True, objective="peak_memory_bytes")
    assert blocks.asked == []


def test_a_run_with_blocks_that_fails_is_noted_and_trials_go_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    Blocks(monkeypatch, {}, fails_with=FlatoutError("the cluster ended it"))
    result = tuned(job(), blocks=True)
    assert any("could not be compared in blocks: the cluster ended it" in note for note in result.notes)
    assert WORKERS in {change.name for change in result.tuning.changes.changes}


def test_a_result_in_one_line() -> None:
    base = BlockResult(arm="x", verdict="undecided", reason="it cannot be judged in blocks: no model was found")
    assert in_words(base) == "it cannot be judged in blocks: no model was found"
