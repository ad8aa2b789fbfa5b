from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from tests.report import tuning_builder as builder

from flatout.records.tuning import TuneRequest, TuneResult, TuningEnd
from flatout.report import tuning_json as tuning_report
from flatout.report import tuning_phrases
from flatout.report.tuning_json import tuning_json
from flatout.report.tuning_next import next_words

COMMAND = ["flatout", "tune", "--json", "--", "train", "--api-key", "hunter2"]


def found(result: TuneResult) -> Any:
    return json.loads(tuning_json(result, COMMAND))


def test_keys_are_those_of_the_contract() -> None:
    data = found(builder.better())
    assert list(data)[:9] == [
        *("schema", "version", "tool_version", "command"),
        *("verdict", "speedup", "mean_speedup", "interval", "changes"),
    ]
    assert (data["schema"], data["version"]) == ("flatout/tuning", 1)
    assert (data["verdict"], data["speedup"], data["interval"]) == ("better", 3.21, [3.13, 3.29])
    assert data["num_trials"] == 61
    assert (data["num_predictions"], data["num_in_predicted_interval"]) == (2, 2)
    first = data["changes"][0]
    assert {key: first[key] for key in ("name", "safety", "predicted_speedup", "speedup", "interval")} == {
        "name": "nccl-sockets=2x2x8",
        "safety": "exact",
        "predicted_speedup": 2.9,
        "speedup": 2.71,
        "interval": [2.66, 2.76],
    }


def test_a_change_that_was_measured_with_others_has_no_ratio_and_says_where_it_is() -> None:
    data = found(builder.better())
    for change in data["changes"][1:]:
        assert (change["speedup"], change["interval"], change["verdict"]) == (None, None, None)
        assert change["measured_in"] == "ddp-bucket-mb=100 + optimizer-fused"
    way = next(one for one in data["tried"] if one["name"] == data["changes"][1]["measured_in"])
    assert (way["speedup"], way["interval"]) == (1.18, [1.15, 1.21])


@pytest.mark.parametrize("name", ["nothing", "unsafe", "out_of_budget", "many"])
def test_without_a_measured_set_the_verdict_is_undecided_and_the_speedup_unknown(name: str) -> None:
    data = found(builder.ALL[name]())
    assert (data["verdict"], data["speedup"], data["interval"]) == ("undecided", None, None)
    assert data["changes"] == []
    assert data["tuned_step_s"] is None


def test_equivalent_is_said_where_it_was_measured() -> None:
    one = builder.change("x")
    data = found(builder.tuning((one,), builder.verdict("equivalent", 1.001, 0.995, 1.007)))
    assert (data["verdict"], data["speedup"]) == ("equivalent", 1.001)


def test_a_gain_that_is_quoted_lower_has_its_plain_mean_beside_it_and_predictions_are_held_against_that() -> None:
    data = found(builder.corrected())
    assert (data["verdict"], data["speedup"], data["mean_speedup"]) == ("better", 1.031, 1.049)
    (adopted,), (way,) = data["changes"], data["tried"]
    for one in (adopted, way):
        assert (one["speedup"], one["mean_speedup"], one["interval"]) == (1.031, 1.049, [1.012, 1.096])
    assert data["median_prediction_error"] == pytest.approx(1.06 / 1.049 - 1)


def test_an_unsafe_change_has_a_reason_and_no_speed() -> None:
    (one,) = found(builder.unsafe())["tried"]
    assert one["outcome"] == "unsafe"
    assert one["reason"].startswith("the mean loss differs")
    assert [
        one[key] for key in ("verdict", "speedup", "mean_speedup", "interval", "screened_speedup", "num_pairs")
    ] == [None] * 6


def test_nothing_that_was_tried_is_left_out() -> None:
    data = found(builder.many())
    assert len(data["tried"]) == 60
    assert len(data["notes"]) == 30


def test_secrets_are_masked_and_every_result_is_an_object() -> None:
    for make in builder.ALL.values():
        text = tuning_json(make(), COMMAND).decode()
        assert "hunter2" not in text
        assert json.loads(text)["schema"] == "flatout/tuning"


def test_without_pretty_it_is_one_line() -> None:
    assert b"\n" not in tuning_json(builder.better(), COMMAND, pretty=False)


ENDS = [
    (TuningEnd(ended_by="time_budget", limit=600), True),
    (TuningEnd(ended_by="time_budget", limit=600, interrupts="noise_floor"), True),
    (TuningEnd(ended_by="trial_budget", limit=40, num_reserved=8), True),
    (TuningEnd(ended_by="trial_budget", limit=40, interrupts="confirmation"), True),
    (TuningEnd(ended_by="max_rounds", limit=6), False),
    (TuningEnd(ended_by="no_candidates"), False),
    (TuningEnd(ended_by="not_profiled"), False),
    (TuningEnd(ended_by="never_profiled"), True),
]


def options_of_next(result: TuneResult) -> tuple[str, ...]:
    words = next_words(result, "out")
    return words[: words.index("--")]


@pytest.mark.parametrize(("end", "is_cut_short"), ENDS)
@pytest.mark.parametrize("sentence", ["the budget", "all ", "another sentence"])
def test_what_ended_a_tuning_is_a_type_however_it_is_worded(
    end: TuningEnd, is_cut_short: bool, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = msgspec.structs.replace(builder.nothing(), end=end, request=TuneRequest(budget_s=600.0, max_trials=40))
    as_it_is, options = found(result), options_of_next(result)
    assert (as_it_is["ended_by"], as_it_is["is_cut_short"]) == (end.ended_by, is_cut_short)
    assert ("--out" in options) is is_cut_short
    assert ("80" in options) is (end.ended_by == "trial_budget")
    for module in (tuning_phrases, tuning_report):
        monkeypatch.setattr(module, "why_ended", lambda end: sentence)
    assert found(result) == as_it_is | {"why_ended": sentence}
    assert options_of_next(result) == options
