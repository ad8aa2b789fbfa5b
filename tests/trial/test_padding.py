"""The padding that a trial's patch reports, and what the report says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flatout.records.trial import Padding
from flatout.records.tuning import PaddingChange
from flatout.report.tuning_phrases import balanced_sentence
from flatout.trial.patches import read_padding


def line(patch: str = "balanced_batches", *, applied: bool = True, before: Any = "41.3", after: Any = "6.0") -> str:
    details = {"loaders": 1, "padding_before_percent": before, "padding_after_percent": after}
    return json.dumps({"patch": patch, "pid": 7, "applied": applied, "reason": None, "details": details})


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        (line(), (0.413, 0.06)),
        (line(applied=False), None),
        (line("dataloader"), None),
        (line(before="unknown"), None),
        (line(before="141"), None),
        (json.dumps({"patch": "balanced_batches", "pid": 7, "applied": True}), None),
    ],
)
def test_the_padding_is_that_of_the_patch_that_was_in_effect(
    text: str, shares: tuple[float, float] | None, tmp_path: Path
) -> None:
    (tmp_path / "patches-n1-7.jsonl").write_text(text + "\n")
    padding = read_padding(tmp_path)
    assert (padding and (padding.before_share, padding.after_share)) == (shares and pytest.approx(shares))


def test_the_report_has_padding_and_spread_before_and_after() -> None:
    balanced = PaddingChange(
        padding=Padding(before_share=0.413, after_share=0.06), baseline_step_spread=0.31, tuned_step_spread=0.12
    )
    assert balanced_sentence(balanced) == (
        "padding: 41 % of the tokens with the script's batches, 6.0 % with balanced ones;"
        " standard deviation of the step time: 31 % of its mean before, 12 % after"
    )
