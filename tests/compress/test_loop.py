"""What is recommended, on variants whose true loss, speed and size are known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.compress.simulated import SimulatedBackend, Truth

from flatout.compress.backend import Benched, NotPreparedError, ScreeningStart, Sensitivity, Variant
from flatout.compress.left_out import skipped_layers
from flatout.compress.loop import CompressionFound, CompressionLoop, CompressionPlan
from flatout.errors import InputError
from flatout.records.compression import MaxLoss

PLAN = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=MaxLoss(value=0.02, is_relative=True))
GOOD = Truth(speedup=2.0, size=0.25)


def compressed(
    truths: dict[str, Truth], plan: CompressionPlan = PLAN, **more: Any
) -> tuple[CompressionFound, SimulatedBackend]:
    backend = SimulatedBackend(truths, **more)
    variants = [Variant(name=name, kind=name) for name in truths]
    return CompressionLoop(backend, plan, variants, lambda line: None).run(), backend


def refusals(found: CompressionFound) -> dict[str, str | None]:
    return {variant.name: variant.refusal for variant in found.variants}


def test_what_is_faster_and_loses_nothing_is_recommended() -> None:
    found, _ = compressed({"good": GOOD})
    assert (found.recommended, found.ended_by) == (("good",), "all_tried")
    final = found.variants[0].final
    assert final is not None
    assert (final.outcome, final.num_samples) == ("non_inferior", 1000)


@pytest.mark.parametrize("seed", range(5))
def test_planted_traps_are_refused_for_their_reasons(seed: int) -> None:
    """A slice of `benchmarks/compress_traps.py`, which has 50 seeds."""
    traps = {
        "fast and wrong": Truth(speedup=4.0, size=0.25, loss=0.8),
        "small and slow": Truth(speedup=0.5, size=0.1),
        "not applied": Truth(speedup=1.0, is_applied=False),
        "crashes": Truth(speedup=3.0, fails=True),
        "worse than the limit": Truth(speedup=3.0, size=0.2, loss=0.06),
    }
    found, backend = compressed({**traps, "good": GOOD}, seed=seed)
    assert found.recommended == ("good",)
    assert refusals(found) == {
        "fast and wrong": "inferior",
        "small and slow": "looks_slower",
        "not applied": "not_applied",
        "crashes": "failed",
        "worse than the limit": "inferior",
        "good": None,
    }
    assert {name for name, _ in backend.benched} == {"good"} | {
        name for name, _ in backend.benched if name == "worse than the limit"
    }


@pytest.mark.parametrize("seed", range(5))
def test_luck_on_50_samples_is_not_enough(seed: int) -> None:
    found, _ = compressed({"lucky": Truth(speedup=3.0, size=0.2, loss=0.03)}, num_samples=50, seed=seed)
    assert found.recommended == ()


def test_a_lucky_choice_is_judged_on_data_that_chose_nothing() -> None:
    """Its search data show no loss; the final evaluation has the true one, of 10 %."""
    backend = SimulatedBackend({"lucky": Truth(speedup=3.0, loss=0.1)})
    evaluate = backend.evaluate
    honest = SimulatedBackend({})

    def lucky(variant: Variant, *, is_final: bool) -> Any:
        evaluated = evaluate(variant, is_final=is_final)
        return evaluated if is_final else honest.evaluate(Variant(name="untouched"), is_final=False)

    backend.evaluate = lucky  # type: ignore[method-assign]
    plan = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=PLAN.max_loss, has_final=True)
    found = CompressionLoop(
        backend, plan, [Variant(name="lucky", kind="lucky", applied_by="files")], lambda line: None
    ).run()
    search, final = found.variants[0].search, found.variants[0].final
    assert search is not None
    assert final is not None
    assert (search.outcome, final.outcome) == ("non_inferior", "inferior")
    assert (found.recommended, found.variants[0].refusal) == ((), "inferior")


def test_an_unknown_number_of_samples_shows_nothing() -> None:
    found, _ = compressed({"good": GOOD}, prints_samples=False, prints_number=False)
    assert (found.recommended, refusals(found)) == ((), {"good": "loss_not_shown"})


def test_without_held_out_data_nothing_has_the_final_word() -> None:
    plan = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=MaxLoss(value=0.2, is_relative=True))
    found, _ = compressed({"good": GOOD}, plan, prints_samples=False)
    assert (found.recommended, refusals(found)) == ((), {"good": "no_held_out_data"})


def test_the_fastest_and_the_smallest_are_judged_at_half_the_level_each() -> None:
    truths = {
        "fastest": Truth(speedup=3.0, size=0.5),
        "smallest": Truth(speedup=1.5, size=0.2),
        "neither": Truth(speedup=1.2, size=0.6),
    }
    found, _ = compressed(truths)
    assert found.recommended == ("fastest", "smallest")
    assert refusals(found)["neither"] == "another_chosen"
    assert [variant.final.level for variant in found.variants if variant.final] == [0.025, 0.025]
    assert [variant.dominated_by for variant in found.variants] == [None, None, "fastest"]


def test_each_batch_size_counts() -> None:
    """Twice as fast at batch 1, and slower at 64: it is refused."""
    plan = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=PLAN.max_loss, batches=(1, 64))
    backend = SimulatedBackend({"one": GOOD})
    bench = backend.bench

    def by_batch(variant: Variant, batch: int | None, budget_s: float) -> Benched:
        backend.truths["one"] = GOOD if batch == 1 else Truth(speedup=0.8)
        return bench(variant, batch, budget_s)

    backend.bench = by_batch  # type: ignore[method-assign]
    found = CompressionLoop(backend, plan, [Variant(name="one", kind="one")], lambda line: None).run()
    assert [speed.verdict.verdict for speed in found.variants[0].speeds] == ["better", "worse"]
    assert (found.recommended, found.variants[0].refusal) == ((), "slower")


def test_what_is_equally_fast_must_save_a_tenth_of_the_size() -> None:
    equal = {size: compressed({"equal": Truth(noise=0.001, size=size)})[0] for size in (0.89, 0.91)}
    assert [equal[size].variants[0].refusal for size in (0.89, 0.91)] == [None, "no_gain"]


def test_a_budget_ends_it_with_what_is_known() -> None:
    plan = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=PLAN.max_loss, budget_s=18.0)
    found, backend = compressed({"first": GOOD, "second": GOOD}, plan)
    assert (found.ended_by, len(backend.benched)) == ("budget", 1)
    assert refusals(found) == {"first": None, "second": "speed_not_shown"}  # no run was needed to judge the first


def test_what_fails_before_a_model_is_called_is_a_failure() -> None:
    found, _ = compressed({"lost": Truth(fails=True, is_lost=True)})
    assert (found.variants[0].outcome, found.variants[0].reason) == ("failed", "ValueError: no")


def test_after_its_budget_no_evaluation_is_run_for_the_final_word() -> None:
    plan = CompressionPlan(
        metric="accuracy", is_higher_better=True, max_loss=PLAN.max_loss, budget_s=18.0, has_final=True
    )
    found, backend = compressed({"first": GOOD, "second": GOOD}, plan)
    assert refusals(found) == {"first": "another_chosen", "second": "speed_not_shown"}
    assert not any(is_final for _, is_final in backend.evaluated)


def lucky_start() -> SimulatedBackend:
    """Return a backend whose `slow` is twice as slow, but three times as fast in its start of the screening."""
    backend = SimulatedBackend({"slow": Truth(speedup=0.5, size=0.1), "good": GOOD})
    start = backend.start

    def lucky(variant: Variant, batch: int | None, budget_s: float, num_starts: int) -> ScreeningStart:
        drawn = start(variant, batch, budget_s, num_starts)
        if variant.name != "slow" or drawn.trial is None:
            return drawn
        return msgspec.structs.replace(drawn, trial=msgspec.structs.replace(drawn.trial, step_s=(1 / 3,)))

    backend.start = lucky  # type: ignore[method-assign]
    return backend


def test_what_is_slower_at_one_batch_size_gives_its_time_to_the_others() -> None:
    """The budget ends before its other batch sizes; what was measured at some sizes alone is not recommended."""
    plan = CompressionPlan(
        metric="accuracy", is_higher_better=True, max_loss=PLAN.max_loss, batches=(1, 64), budget_s=4 + 3 * 16
    )
    plan = msgspec.structs.replace(plan, budget_s=plan.budget_s + 4)
    backend = lucky_start()
    variants = [Variant(name=name, kind=name) for name in ("slow", "good")]
    found = CompressionLoop(backend, plan, variants, lambda line: None).run()
    assert (found.ended_by, backend.benched) == ("budget", [("slow", 1), ("good", 1), ("good", 64)])
    assert (found.recommended, refusals(found)) == (("good",), {"slow": "slower", "good": None})
    backend = lucky_start()
    short = msgspec.structs.replace(plan, budget_s=8 + 2 * 16)
    found = CompressionLoop(backend, short, variants, lambda line: None).run()
    assert backend.benched == [("slow", 1), ("good", 1)]
    assert refusals(found) == {"slow": "slower", "good": "speed_not_shown"}


def test_the_untouched_model_must_run() -> None:
    backend = SimulatedBackend({"untouched": Truth(fails=True)})
    with pytest.raises(InputError, match="the evaluation of the untouched model fails: ValueError: no"):
        CompressionLoop(backend, PLAN, [], lambda line: None).run()


def test_where_all_lose_too_much_layers_are_left_out_until_the_search_data_pass() -> None:
    """Leaving two layers out is enough; the two that cost the most for their bytes are the ones left out."""
    sensitivities = {
        "first": Sensitivity(error=0.3, saved_bytes=100),
        "middle": Sensitivity(error=0.2, saved_bytes=1000),
        "last": Sensitivity(error=0.2, saved_bytes=50),
        "other": Sensitivity(error=0.01, saved_bytes=100),
        "fifth": Sensitivity(error=0.0, saved_bytes=100),
    }
    truths = {
        "int4-weights": Truth(speedup=2.5, size=0.1, loss=0.3),
        "int4-weights without 1": Truth(speedup=2.2, size=0.2, loss=0.2),
        "int4-weights without 2": Truth(speedup=2.0, size=0.3),
    }
    backend = SimulatedBackend(truths, sensitivities=sensitivities)
    variants = [Variant(name="int4-weights", kind="int4-weights")]
    found = CompressionLoop(backend, PLAN, variants, lambda line: None).run()
    assert found.recommended == ("int4-weights without 2",)
    assert found.variants[-1].skipped == ("last", "first")
    assert [name for name, _ in backend.benched] == ["int4-weights without 2"]


def test_not_all_layers_are_left_out() -> None:
    found = {str(number): Sensitivity(error=1.0 / (number + 1), saved_bytes=1) for number in range(5)}
    assert list(skipped_layers(found)) == [("0",), ("0", "1"), ("0", "1", "2", "3")]
    assert list(skipped_layers({"only": Sensitivity(error=1.0, saved_bytes=1)})) == []


def test_a_variant_that_cannot_be_made_is_not_applied() -> None:
    backend = SimulatedBackend({})

    def refused(variant: Variant) -> Variant:
        raise NotPreparedError("the folder has no files of safetensors")

    backend.prepared = refused  # type: ignore[method-assign]
    found = CompressionLoop(backend, PLAN, [Variant(name="file-bf16", applied_by="files")], lambda line: None).run()
    variant = found.variants[0]
    assert (variant.outcome, variant.reason) == ("not_applied", "the folder has no files of safetensors")
