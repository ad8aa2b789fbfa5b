"""What the terminal, the page and the JSON say of a compression, whose variants have a known truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.compress.simulated import SimulatedBackend, Truth

from flatout.compress.backend import Variant
from flatout.compress.loop import CompressionLoop, CompressionPlan
from flatout.records.compression import Compression, MaxLoss, UnofferedVariant
from flatout.report.compression_html import compression_html, kind_of
from flatout.report.compression_json import compression_json
from flatout.report.compression_phrases import headline, outcome_words
from flatout.report.compression_text import compression_text
from flatout.report.terminal import TextStyle

TRUTHS = {
    "int8<b>": Truth(speedup=2.0, size=0.25),
    "slow": Truth(speedup=0.9, noise=0.005, size=0.3),
    "very slow": Truth(speedup=0.1, size=0.3),
    "wrong": Truth(speedup=3.0, size=0.1, loss=0.5),
    "absent": Truth(is_applied=False),
    "second": Truth(speedup=1.5, size=0.5),
}


def result(**more: Any) -> Compression:
    plan = CompressionPlan(metric="accuracy", is_higher_better=True, max_loss=MaxLoss(value=0.02, is_relative=True))
    backend = SimulatedBackend(TRUTHS, **more)
    found = CompressionLoop(backend, plan, [Variant(name=name, kind=name) for name in TRUTHS], lambda line: None).run()
    return Compression(
        eval_command=("python", "eval.py"),
        eval_final_command=None,
        bench_command=("python", "infer.py"),
        model=None,
        metric=plan.metric,
        is_higher_better=True,
        max_loss=plan.max_loss,
        untouched=found.untouched,
        evaluation=found.evaluation,
        is_repeatable=found.is_repeatable,
        variants=found.variants,
        recommended=found.recommended,
        num_trials=found.num_trials,
        num_screening_starts=found.num_screening_starts,
        unoffered=(UnofferedVariant(name="2:4", reason="this machine has no NVIDIA GPU"),),
    )


@pytest.fixture(scope="module")
def compression() -> Compression:
    return result()


def words_of(compression: Compression) -> dict[str, str]:
    return {variant.name: outcome_words(variant) for variant in compression.variants}


def test_each_variant_has_its_outcome(compression: Compression) -> None:
    words = words_of(compression)
    assert words["int8<b>"] == "recommended"
    assert words["slow"].startswith("slower than the untouched model; dominated by int8<b>")
    assert words["very slow"] == "looks slower in one start: not compared further"
    assert words["wrong"].startswith("its loss is above the limit")
    assert words["absent"] == "not applied"
    assert words["second"] == "another variant is faster or smaller; dominated by int8<b>"
    kinds = [kind_of(variant) for variant in compression.variants]
    assert kinds == ["recommended", "slower", "other", "refused", "refused", "dominated"]


def test_the_terminal_has_the_table_and_the_conditions(compression: Compression) -> None:
    text = compression_text(compression, Path("out"), style=TextStyle(width=200))
    for part in (
        "recommended: int8<b> (1.9",
        "2.0 % of accuracy",
        "untouched: accuracy 0.",
        "on 2,000 samples, higher is better",
        "absent: not applied: nothing fits",
        "48 trials of the benchmark in turn, after 6 starts to screen the variants",
        "x in one start, against 2 starts of the untouched model: it looks slower and was not compared further; one",
        "2:4 is not offered: this machine has no NVIDIA GPU",
        "held-out data: loss 0.0 %, below",
        "samples)",
    ):
        assert part in text.replace("\n", " ") or part in text


def test_the_page_shows_the_same_and_escapes_names(compression: Compression) -> None:
    page = compression_html(compression, ["flatout", "compress"], "out")
    assert "int8<b>" not in page
    assert "int8&lt;b&gt;" in page
    assert page.count("<circle") == 1 + 3  # the untouched model, and what was benchmarked
    assert "slower than the untouched model" in page
    assert "looks slower in one start: not compared further" in page
    assert "x in one start</td>" in page
    assert "<script" not in page


def test_the_json_is_the_record(compression: Compression) -> None:
    content = json.loads(compression_json(compression, ["flatout", "compress"]))
    assert (content["schema"], content["recommended"]) == ("flatout/compression", ["int8<b>"])
    assert content["variants"][0]["final"]["outcome"] == "non_inferior"


def test_an_unknown_number_of_samples_is_said() -> None:
    unknown = result(prints_samples=False, prints_number=False)
    assert headline(unknown).startswith("no variant is recommended")
    text = compression_text(unknown, Path("out"), style=TextStyle(width=300))
    assert "the number of samples is unknown, so no loss can be shown to be small" in text
    assert "of which nothing can be shown: the number of samples is unknown" in text
