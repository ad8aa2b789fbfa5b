from __future__ import annotations

import re

import msgspec
import pytest
from tests.report import tuning_builder as builder
from tests.report.page import Node, read_page

from flatout.records.tuning import Bound, TuneRequest, TuneResult
from flatout.report.tuning_html import MOST_TRIED, tuning_html

COMMAND = ["flatout", "tune", "--", "train.py", "--api-key", "hunter2"]


def page_of(result: TuneResult) -> Node:
    return read_page(tuning_html(result, COMMAND, "out"))


@pytest.fixture(params=sorted(builder.ALL), scope="module")
def page(request: pytest.FixtureRequest) -> Node:
    return page_of(builder.ALL[request.param]())


def test_nothing_outside_is_referred_to_and_there_is_no_script(page: Node) -> None:
    for node in page.all():
        assert node.tag not in ("script", "link", "img", "iframe", "object", "embed", "base", "form", "use", "image")
        assert not {"src", "href", "xlink:href", "srcset", "action", "data"} & set(node.attributes)
        assert not [name for name in node.attributes if name.startswith("on")]
    style = page.all("style")[0].text
    assert "url(" not in style
    assert "@import" not in style
    policy = next(meta for meta in page.all("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_place_is_on_the_axis(page: Node) -> None:
    for node in page.all("line") + page.all("circle"):
        for name in ("x1", "x2", "cx"):
            place = node.attributes.get(name, "0")
            assert 0 <= float(place.removesuffix("%")) <= 100


def test_the_page_is_under_1_mb_however_much_was_tried() -> None:
    many = builder.many()
    huge = msgspec.structs.replace(many, tried=many.tried * 100, notes=many.notes * 100, bounds=many.bounds * 100)
    text = tuning_html(huge, COMMAND, "out")
    assert len(text.encode()) < 500_000
    assert f"And {6000 - MOST_TRIED} more, in tuning.json." in text


def test_hostile_texts_are_shown_and_do_nothing() -> None:
    text = tuning_html(builder.hostile(), COMMAND, "out")
    assert "<script" not in text
    assert "<img" not in text
    assert "\x1b" not in text
    assert "hunter2" not in text
    assert "49" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL).replace("&#34;", "")


def test_the_headline_and_the_answers() -> None:
    page = page_of(builder.better())
    assert page.all("h1")[0].text.startswith("3.21x faster (3.13-3.29) , confirmed on 6 fresh pairs")
    answers = page.all("dl", "answers")[0].text
    assert "Gain 3.21x faster 3.13-3.29" in answers
    assert "flatout run --config out/tuned.toml -- torchrun" in answers


def test_bars_are_as_long_as_the_times() -> None:
    bars = page_of(builder.better()).section("before").all("i", "side")
    assert [bar.width for bar in bars[:2]] == [100.0, pytest.approx(7900 / 254, abs=0.01)]
    assert "tuned" in bars[1].attributes["class"].split()


def test_an_unknown_time_has_no_bar() -> None:
    section = page_of(builder.undecided()).section("before")
    assert "tuned unknown" in section.text
    assert len(section.all("i", "side")) == 3


def test_each_confirmed_change_and_all_together_have_an_interval_on_one_axis() -> None:
    section = page_of(builder.better()).section("changes")
    spoken = [svg.attributes["aria-label"] for svg in section.all("svg")]
    assert spoken == [
        "nccl-sockets=2x2x8: 2.71x (2.66-2.76), better",
        "ddp-bucket-mb=100 + optimizer-fused: 1.18x (1.15-1.21), better",
        "all, against the baseline: 3.21x (3.13-3.29), better",
    ]
    places = [float(svg.all("circle")[0].attributes["cx"].removesuffix("%")) for svg in section.all("svg")]
    assert places[1] < places[0] < places[2]


def test_an_estimate_without_an_interval_is_a_mark_without_a_line() -> None:
    last = page_of(builder.undecided()).section("changes").all("svg")[-1]
    assert len(last.all("circle")) == 1
    assert not last.all("line", "all")


def test_what_a_change_sets_is_shown() -> None:
    text = page_of(builder.better()).section("changes").text
    assert "NCCL_SOCKET_NTHREADS=2" in text
    assert "inside the processes: ddp-bucket-mb (value=100)" in text


def test_predictions_stand_beside_measurements() -> None:
    section = page_of(builder.better()).section("predictions")
    labels = [svg.attributes.get("aria-label", "") for svg in section.all("svg")]
    assert "nccl-sockets=2x2x8: predicted 2.90x (2.20-3.60), measured 2.71x (2.66-2.76)" in labels
    assert "5.9 %" in section.text


def test_a_prediction_stands_beside_the_plain_mean_and_what_won_has_the_gain_to_quote() -> None:
    page = page_of(builder.corrected())
    (label,) = (svg.attributes.get("aria-label", "") for svg in page.section("predictions").all("svg")[-1:])
    assert label == "ddp-bucket=50: predicted 1.06x (1.00-1.12), measured 1.05x (1.01-1.10)"
    assert "1.03x (1.01-1.10)" in page.section("changes").text


def test_of_memory_no_prediction_is_compared() -> None:
    assert "Only time is predicted" in page_of(builder.memory()).section("predictions").text


def test_no_speed_of_an_unsafe_change_is_on_the_page() -> None:
    text = tuning_html(builder.unsafe(), COMMAND, "out")
    for speed in ("8.88", "8.80", "8.96", "7.77"):
        assert speed not in text
    row = page_of(builder.unsafe()).section("tried").all("tr")[1]
    assert "unsafe" in row.text
    assert "not shown" in row.text
    assert "the mean loss differs by 31 %" in row.text


def test_without_any_change_the_page_says_so() -> None:
    page = page_of(builder.nothing())
    assert page.all("h1")[0].text == "no change helps: nothing was better than the baseline"
    assert not [node for node in page.all("section") if node.attributes["id"] == "changes"]
    assert "tuned" not in page.section("before").text


def test_spaces_around_code_stay() -> None:
    result = msgspec.structs.replace(builder.nothing(), notes=("files of `torch.save` were diverted",))
    assert "files of <code>torch.save</code> were diverted" in tuning_html(result, COMMAND, "out")


def test_a_bound_of_no_gain_has_an_empty_bar() -> None:
    result = msgspec.structs.replace(builder.nothing(), bounds=(Bound(finding="x", speedup=1.0),))
    assert page_of(result).section("bounds").all("i")[0].width == 0


def test_a_tuning_that_a_budget_cut_goes_on_in_its_own_folder() -> None:
    made = builder.nothing()
    given = TuneRequest(budget_s=600.0, max_trials=None, options=())
    cut = msgspec.structs.replace(made, end=builder.OUT_OF_TIME, request=given)
    assert "flatout tune --out out --budget 20m -- torchrun" in page_of(cut).all("dl", "answers")[0].text


def test_the_caption_of_the_intervals_names_the_trials_behind_the_last_row() -> None:
    result = builder.better()
    verdict = result.tuning.verdict
    assert verdict is not None
    assert "with the baseline, on 6 fresh pairs." in page_of(result).text
    trials = msgspec.structs.replace(verdict, num_candidates=2, num_baselines=6, num_pairs=2)
    of_trials = msgspec.structs.replace(result, tuning=msgspec.structs.replace(result.tuning, verdict=trials))
    assert "with the baseline, by 2 trials against 6 of the baseline." in page_of(of_trials).text
