"""The whole loop on the simulated server, in virtual time: causes, knobs, traps, A/A, and how it ends.

`benchmarks/serving_causes.py` has seven planted causes with twenty seeds each, and two hundred tunings without effect.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from tests.serving.scenarios import SCENARIOS, TRAPS, without_effect
from tests.serving.simulated import table, tuned

from flatout.records.change import Safety
from flatout.serving.loop import Found, ServingOptions

_BY_CAUSE = {scenario.cause: scenario for scenario in SCENARIOS}


@cache
def found(cause: str) -> Found:
    scenario = _BY_CAUSE[cause]
    return tuned(scenario.words, seed=3, rates=scenario.rates, slo=scenario.slo, **scenario.load)


def test_the_planted_cause_is_found_and_its_knob_adopted() -> None:
    cause = "under-batched"
    result = found(cause)
    assert result.causes[0].name == cause
    assert [change.name for change in result.adopted] == [_BY_CAUSE[cause].change]
    assert result.verdict is not None
    assert result.verdict.verdict == "better"
    assert result.verdict.interval is not None
    assert result.verdict.interval[0] > 1


def test_two_causes_are_fixed_one_after_the_other_and_the_claim_is_of_both() -> None:
    result = tuned(
        ("--max-num-seqs", "2", "--enforce-eager"),
        seed=1,
        rates=(20, 80),
        requests=32,
        prompt_tokens=32,
        output_tokens=12,
        slo="p99 ttft<200ms, p99 itl<40ms",
    )
    assert {change.name for change in result.adopted} == {"max-num-seqs=8", "without-enforce-eager"}
    assert result.verdict is not None
    assert result.verdict.verdict == "better"
    order = result.verdict.order
    assert "A" in order[order.index("B") :]  # an untouched start came between those of the changed server


def test_what_is_fast_and_wrong_or_short_or_refuses_is_unsafe() -> None:
    by_name = {arm.name: arm for arm in found("under-batched").tried}
    reasons = {name: by_name[name].gate for name in TRAPS}
    assert {name: gate.outcome for name, gate in reasons.items()} == dict.fromkeys(TRAPS, "failed")
    assert "agree with the untouched server's" in reasons["fast-math"].reason
    assert "50 % of the tokens" in reasons["short-answers"].reason
    assert "requests failed" in reasons["refuse-late"].reason
    assert by_name["fast-math"].screened is not None
    assert by_name["fast-math"].screened > 1.1  # it was tempting


def test_the_untouched_server_and_the_candidate_take_turns() -> None:
    arms = [trial.arm for trial in found("under-batched").trials]
    assert arms[:2] == ["baseline", "baseline"]
    after_screening = arms[arms.index("refuse-late") + 1 :]
    assert after_screening[:2] == ["max-num-seqs=16", "baseline"] or after_screening[0] == "max-num-seqs=16"
    assert [trial.index for trial in found("under-batched").trials] == list(range(len(arms)))


def test_knobs_that_do_nothing_are_not_adopted() -> None:
    assert [change.name for seed in range(3) for change in without_effect(seed).adopted] == []


def test_a_server_within_the_limits_has_nothing_to_gain() -> None:
    result = tuned((), seed=0, rates=(2.0,), requests=8, prompt_tokens=8, output_tokens=4, held_prompts=2)
    assert (result.ended_by, len(result.trials), result.adopted) == ("within_limits", 2, ())


def starved(options: ServingOptions, **more: Any) -> Found:
    return tuned(
        ("--max-num-seqs", "2"),
        seed=0,
        rates=(60,),
        options=options,
        slo="p99 ttft<120ms",
        requests=32,
        prompt_tokens=8,
        output_tokens=16,
        **more,
    )


def test_the_number_of_trials_ends_the_tuning() -> None:
    result = starved(ServingOptions(budget_s=1e9, max_trials=4))
    assert (result.ended_by, len(result.trials)) == ("trials", 4)


def test_the_budget_ends_the_tuning_before_a_trial_that_does_not_fit() -> None:
    first, second = starved(ServingOptions(budget_s=1e9, max_trials=4)).trials[:2]
    cut = starved(ServingOptions(budget_s=1.6 * (first.took_s + second.took_s)))
    assert (cut.ended_by, len(cut.trials)) == ("budget", 3)


def test_a_short_budget_goes_to_the_first_change_that_is_clearly_better() -> None:
    """Six trials: two of the untouched server, one of the first candidate, which gained much, and those that decide."""
    result = starved(ServingOptions(budget_s=1e9, max_trials=6))
    assert [trial.arm for trial in result.trials[:5]] == [
        "baseline",
        "baseline",
        "max-num-seqs=8",
        "baseline",
        "max-num-seqs=8",
    ]
    assert [change.name for change in result.adopted] == ["max-num-seqs=8"]
    assert result.verdict is not None
    assert result.verdict.verdict == "better"


def test_a_tuning_that_was_cut_short_resumes_with_a_larger_budget_from_all_its_trials() -> None:
    cut = starved(ServingOptions(budget_s=1e9, max_trials=5))
    longer = starved(ServingOptions(budget_s=1e9, max_trials=14), recorded=cut.trials)
    assert longer.trials[:5] == cut.trials


def test_an_exact_change_whose_answers_differ_a_little_is_judged_as_rounding_where_that_is_allowed() -> None:
    """The answers of the knob agree in three of five tokens."""

    def tuned_with(allowed: Safety, held_tokens: int) -> Found:
        engine = table()
        knob = next(knob for knob in engine.knob if knob.name == "fast-math")
        return starved(
            ServingOptions(budget_s=1e9, max_trials=12, allowed=allowed),
            engine=msgspec.structs.replace(engine, knob=(knob,)),
            held_tokens=held_tokens,
        )

    rounding = tuned_with("rounding", 5)
    assert [(change.name, change.safety) for change in rounding.adopted] == [("fast-math", "rounding")]
    assert [change.safety for arm in rounding.tried for change in arm.changes] == ["rounding"]
    assert [arm.gate.outcome for arm in tuned_with("exact", 5).tried] == ["failed"]
    assert [arm.gate.outcome for arm in tuned_with("rounding", 12).tried] == ["failed"]
