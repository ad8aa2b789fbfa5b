"""One start of each variant orders them, and drops what looks clearly slower, without a claim about it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.compress.simulated import SimulatedBackend, Truth

from flatout.compress.backend import Benched, ScreeningStart, Variant
from flatout.compress.journal import CompressionJournal, ResumedBackend
from flatout.compress.loop import CompressionFound, CompressionLoop, CompressionPlan
from flatout.compress.screening import screened_speeds
from flatout.records.compression import MaxLoss
from flatout.records.trial import BASELINE, TrialResult

PLAN = CompressionPlan(
    metric="accuracy", is_higher_better=True, max_loss=MaxLoss(value=0.02, is_relative=True), batches=(32, 1)
)
TRUTHS = {
    "slow": Truth(speedup=0.4, size=0.3),
    "fair": Truth(speedup=1.5, size=0.5),
    "slower": Truth(speedup=0.1, size=0.2),
    "best": Truth(speedup=3.0, size=0.25),
    "wrong": Truth(speedup=9.0, size=0.1, loss=0.5),
}
VARIANTS = [Variant(name=name, kind=name) for name in TRUTHS]


class Counted(SimulatedBackend):
    """Keeps the time that each comparison gets. Ctrl-C comes at the start with this number."""

    def __init__(self, interrupted_at: int = -1) -> None:
        super().__init__(TRUTHS)
        self.budgets_s: list[float] = []
        self.interrupted_at = interrupted_at

    def start(self, variant: Variant, *arguments: Any) -> ScreeningStart:
        if len(self.started) == self.interrupted_at:
            self.interrupted_at = -1
            raise KeyboardInterrupt
        return super().start(variant, *arguments)

    def bench(self, variant: Variant, batch: int | None, budget_s: float) -> Benched:
        self.budgets_s.append(budget_s)
        return super().bench(variant, batch, budget_s)


def compressed(backend: Any, plan: CompressionPlan = PLAN) -> CompressionFound:
    return CompressionLoop(backend, plan, VARIANTS, lambda line: None).run()


def refusals(found: CompressionFound) -> dict[str, str | None]:
    return {variant.name: variant.refusal for variant in found.variants}


def test_the_most_promising_is_compared_first_and_what_looks_slower_is_not() -> None:
    backend = Counted()
    found = compressed(backend)
    assert backend.started == ["untouched", "slow", "fair", "slower", "best", "untouched"]
    assert backend.benched == [("best", 32), ("best", 1), ("fair", 32), ("fair", 1)]
    assert (found.recommended, found.num_screening_starts, found.num_trials) == (("best",), 6, 4 * 16)
    assert refusals(found) == {
        "slow": "looks_slower",
        "fair": "another_chosen",
        "slower": "looks_slower",
        "best": None,
        "wrong": "inferior",
    }
    slow = found.variants[0]
    assert slow.screened is not None
    assert slow.screened.speedup == pytest.approx(0.4, rel=0.15)
    assert (slow.screened.batch, slow.screened.num_untouched) == (32, 2)
    assert (slow.speeds, slow.final, slow.dominated_by) == ((), None, None)
    assert (slow.memory_bytes, slow.load_s) == (100, 2.0)


def test_a_short_budget_goes_to_the_most_promising() -> None:
    """It ends after 7 evaluations, 6 starts and 2 comparisons, of which an equal share would be too short for any."""
    backend = Counted()
    found = compressed(backend, msgspec.structs.replace(PLAN, budget_s=7 + 6 + 24))
    assert backend.budgets_s == [8.0, 8.0]  # of trials that take a second each
    assert (found.ended_by, found.recommended) == ("budget", ("best",))
    assert refusals(found)["fair"] == "speed_not_shown"
    fair = found.variants[1].screened
    assert fair is not None and not fair.looks_slower


def test_one_variant_alone_is_not_screened() -> None:
    backend = SimulatedBackend({"slow": TRUTHS["slow"]})
    found = CompressionLoop(backend, PLAN, VARIANTS[:1], lambda line: None).run()
    assert (backend.started, refusals(found)) == ([], {"slow": "slower"})


@pytest.mark.parametrize(
    ("untouched_s", "variant_s", "looks_slower"),
    [
        ((1.0, 1.0), 1.19, False),
        ((1.0, 1.0), 1.21, True),
        ((1.0, 1.3), 1.5, False),  # the untouched model's own starts differ: 1.5 is close to the slowest
        ((1.0, 1.3), 1.57, True),
        ((1.0,), 9.0, False),  # how far they differ is unknown
    ],
)
def test_what_looks_slower_is_clearly_slower_than_each_untouched_start(
    untouched_s: tuple[float, ...], variant_s: float, looks_slower: bool
) -> None:
    times = [(BASELINE, untouched_s[0]), ("one", variant_s), *((BASELINE, time) for time in untouched_s[1:])]
    trials = [
        TrialResult(index=index, arm=arm, outcome="completed", step_s=(time,))
        for index, (arm, time) in enumerate(times)
    ]
    assert screened_speeds(trials, 32)["one"].looks_slower is looks_slower
    assert screened_speeds(trials[1:2], 32) == {}


@pytest.mark.parametrize(
    ("failing", "is_applied", "expected"),
    [("best", True, "failed"), ("best", False, "not_applied"), ("untouched", True, "another_chosen")],
)
def test_a_start_that_fails(failing: str, is_applied: bool, expected: str) -> None:
    """Without the untouched model's starts, the comparisons decide alone."""
    backend = Counted()
    start = backend.start

    def failed(variant: Variant, *arguments: Any) -> ScreeningStart:
        if variant.name == failing:
            return ScreeningStart(trial=None, problem="ValueError: no", is_applied=is_applied)
        return start(variant, *arguments)

    backend.start = failed  # type: ignore[method-assign]
    found = compressed(backend)
    reasons = {variant.name: variant.reason for variant in found.variants}
    if failing == "untouched":
        assert refusals(found)["slow"] == "slower"
        assert refusals(found)["fair"] == expected
    else:
        assert (refusals(found)[failing], reasons[failing]) == (expected, "ValueError: no")
        assert found.recommended == ("fair",)


def test_a_start_that_the_end_of_the_budget_cuts_is_no_failure() -> None:
    """It has 7 evaluations and 3 starts, of which the last one does not complete."""
    backend = Counted()
    start = backend.start

    def cut(variant: Variant, *arguments: Any) -> ScreeningStart:
        drawn = start(variant, *arguments)
        is_last = len(backend.started) == 3
        return ScreeningStart(trial=None, problem="it took longer than the time limit") if is_last else drawn

    backend.start = cut  # type: ignore[method-assign]
    found = compressed(backend, msgspec.structs.replace(PLAN, budget_s=10))
    assert (found.ended_by, found.num_screening_starts, backend.benched) == ("budget", 3, [])
    assert {variant.outcome for variant in found.variants} == {"measured"}
    assert refusals(found)["slow"] == "speed_not_shown"  # a single start of the untouched model shows no noise


def test_an_interrupted_screening_continues_with_its_starts(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    expected = compressed(ResumedBackend(Counted(), CompressionJournal(tmp_path / "whole", "same")))
    for number in range(6):
        folder = tmp_path / str(number)
        folder.mkdir()
        backend = Counted(interrupted_at=number)
        interrupted = compressed(ResumedBackend(backend, CompressionJournal(folder, "same")))
        assert (interrupted.ended_by, interrupted.recommended) == ("interrupted", ())
        assert compressed(ResumedBackend(backend, CompressionJournal(folder, "same"))) == expected
        assert len(backend.started) == 6
