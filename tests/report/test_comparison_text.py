"""The report of a comparison: its sentences, its tables, and its next command."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.report import tuning_builder
from tests.report.builder import HOSTILE

from flatout.records.comparison import (
    Arm,
    CallDifference,
    Comparison,
    ComparisonGate,
    EnvironmentDifference,
    PartDifference,
    Power,
    TrainingCheck,
)
from flatout.report.comparison_phrases import calls_text, headline, power_sentence, signed_percent
from flatout.report.comparison_text import comparison_text, next_words
from flatout.report.terminal import TextStyle

TYPED = ("flatout", "compare", "--budget", "5m", "--out=x", "--a-ref", "main", "--", "python", "train.py", "--out", "y")


def part(name: str, source: Any, change_s: float, *, is_shown: bool = True) -> PartDifference:
    interval = (change_s - 0.002, change_s + 0.002)
    return PartDifference(
        part=name,
        source=source,
        a_s=0.04,
        b_s=0.04 + change_s,
        change_s=change_s,
        interval_s=interval,
        is_shown=is_shown,
    )


def comparison(
    name: Any = "worse", speedup: float | None = 0.8, low: float = 0.75, high: float = 0.85, **fields: Any
) -> Comparison:
    arms = {
        "a": Arm(name="A", command=("torchrun", "train.py"), ref="main", commit="a" * 40, step_s=0.1, num_trials=3),
        "b": Arm(name="B", command=("torchrun", "train.py"), ref="HEAD", commit="b" * 40, step_s=0.125, num_trials=4),
    }
    values: dict[str, Any] = {
        "objective": "s_per_sample",
        "verdict": tuning_builder.verdict(name, speedup, low, high, order="ABBAABB"),
        "equivalent_within": 0.01 if name == "equivalent" else None,
        "gate": ComparisonGate(limit=0.03, outcome="failed", slowdown=(0.17, 0.33)),
        "power": Power(run_sd=0.01, trial_s=14.0, effect=0.05, num_trials=15, num_affordable=80, detectable=0.037),
        "parts": (
            part("data_loading", "steps", 0.011),
            part("rest_of_step", "steps", 0.001, is_shown=False),
            part("compute", "profiles", 0.0001, is_shown=False),
        ),
        "cause": "data_loading",
        "calls": (CallDifference(name="aten::item", a_calls=1.0, b_calls=401.0, a_s=0.001, b_s=0.009),),
        "environment": (EnvironmentDifference(name="torch", a="2.10.0", b="2.11.0"),),
        "training": TrainingCheck(is_passed=True, losses="the same", gradients="the same", memory="unknown"),
        "num_trials": 7,
        "ended_by": "decided",
        "budget_s": 300.0,
    }
    return Comparison(**(arms | values | fields))


def flat(result: Comparison) -> str:
    return " ".join(comparison_text(result, "out", TYPED).split())


def test_a_slower_b() -> None:
    text = flat(comparison())
    assert text.startswith("B is slower than A: +25 % time per sample (+18 % to +33 %)")
    assert "The gate fails: B is shown to be worse by more than 3.0 % (+17 % to +33 %)." in text
    assert "A main (aaaaaaaaaa): torchrun train.py 100 ms per step" in text
    assert "Most of the difference is data loading: +11.0 ms (+9.00 ms to +13.0 ms) per step." in text
    assert "per step. Calls of aten::item per step: 1 in A, 401 in B." in text
    assert "aten::item 1 401 1.00 ms 9.00 ms" in text
    assert "torch 2.10.0 2.11.0" in text
    assert "B trains as A does." in text
    assert "3 trials of A and 4 of B, in the order ABBAABB; the question was decided." in text
    assert "finds a slowdown of 5.0 %, as worse by more than the gate of 3.0 %, in 15 trials (80 % power" in text


@pytest.mark.parametrize(
    ("result", "sentence"),
    [
        (comparison("better", 1.25, 1.2, 1.3), "B is faster than A: -20 % time per sample (-23 % to -17 %)"),
        (comparison("better", 1.25, 1.2, 1.3, objective="peak_memory_bytes"), "B is better than A: -20 % peak memory"),
        (comparison("equivalent", 1.0, 0.995, 1.005), "A and B are equivalent within 1.0 %: +0.0 % time per sample"),
        (comparison("undecided", 1.0, 0.9, 1.1), "undecided: B's time per sample differs from A's by -9.1 % to +11 %"),
        (comparison("undecided", None), "undecided: "),
    ],
)
def test_each_verdict_has_its_headline(result: Comparison, sentence: str) -> None:
    if result.verdict.speedup is None:
        verdict = msgspec.structs.replace(result.verdict, interval=None)
        result = msgspec.structs.replace(result, verdict=verdict)
    assert headline(result).startswith(sentence)


def test_a_b_that_trains_differently_is_said_at_the_top() -> None:
    check = TrainingCheck(is_passed=False, losses="they differ", gradients="the same", memory="unknown")
    text = comparison_text(comparison(training=check), "out", TYPED)
    assert "B does not train as A does: see below." in text.split("\n\n", maxsplit=1)[0]
    assert "they differ" in text


def test_without_a_shown_part_no_cause_is_named() -> None:
    assert "No part of the step is shown to differ." in flat(comparison(cause=None))
    assert "Where" not in flat(comparison(parts=(), calls=(), cause=None))


@pytest.mark.parametrize(
    ("needed", "detectable", "phrase"),
    [
        (
            None,
            None,
            "a slowdown of 5.0 % is not found in any number of trials; the budget allows 80 trials, which find no",
        ),
        (
            15,
            0.04,
            "finds a slowdown of 5.0 % in 15 trials (80 % power, about 30.0 s); the budget allows 80 trials, which",
        ),
    ],
)
def test_the_power(needed: int | None, detectable: float | None, phrase: str) -> None:
    stated = Power(run_sd=0.01, trial_s=2.0, effect=0.05, num_trials=needed, num_affordable=80, detectable=detectable)
    assert phrase in power_sentence(stated, None)


def test_the_next_command_has_twice_the_budget_if_that_ended_it() -> None:
    gate = ComparisonGate(limit=0.03, outcome="undecided", slowdown=None)
    open_result = comparison("undecided", 1.0, 0.9, 1.1, gate=gate, ended_by="time_budget")
    assert next_words(open_result, "out", TYPED) == (
        *("flatout", "compare", "--a-ref", "main", "--out", "out", "--budget", "10m"),
        *("--", "python", "train.py", "--out", "y"),
    )
    resumed = next_words(msgspec.structs.replace(open_result, ended_by="interrupted"), "out", TYPED)
    assert resumed[:7] == ("flatout", "compare", "--budget", "5m", "--a-ref", "main", "--out")


def test_the_next_command_compares_the_profiles_if_there_are_any() -> None:
    result = comparison()
    arms = {name: msgspec.structs.replace(getattr(result, name), profile=f"out/{name}") for name in ("a", "b")}
    assert next_words(msgspec.structs.replace(result, **arms), "out", TYPED) == ("flatout", "diff", "out/a", "out/b")
    assert next_words(result, "out", TYPED) == ("flatout", "profile", "--", "torchrun", "train.py")


def test_the_text_fits_80_columns_and_is_safe() -> None:
    hostile = comparison(
        notes=(HOSTILE,),
        environment=(EnvironmentDifference(name=HOSTILE, a=HOSTILE, b="x" * 200),),
        calls=(CallDifference(name=HOSTILE * 3, a_calls=1e9, b_calls=2.0, a_s=1.0, b_s=1e-9),),
    )
    for style in (TextStyle(), TextStyle(has_unicode=False)):
        text = comparison_text(hostile, "out", TYPED, style=style)
        assert max(map(len, text.splitlines())) <= 80
        assert "\x1b" not in text


@pytest.mark.parametrize(
    ("share", "text"), [(0.031, "+3.1 %"), (-0.2, "-20 %"), (0.0, "+0.0 %"), (10.0, "+1000 %"), (10.1, "over +1000 %")]
)
def test_a_relative_change_has_its_sign(share: float, text: str) -> None:
    assert signed_percent(share) == text


def test_kinds_of_steps_have_their_own_table() -> None:
    parts = (part("rest_of_step", "steps", 0.02), part("regular_step", "kinds", 0.02), part("epoch_end", "kinds", 0.01))
    text = flat(comparison(parts=parts, cause="rest_of_step"))
    assert "kind of step A B change 95 % interval regular step 40.0 ms" in text
    assert "epoch end 40.0 ms 50.0 ms +10.0 ms" in text


@pytest.mark.parametrize(
    ("count", "text"), [(1.0, "1"), (2.5, "2.5"), (99.4, "99.4"), (100.0, "100"), (10_001.0, "10,001")]
)
def test_a_number_of_calls(count: float, text: str) -> None:
    assert calls_text(count) == text
