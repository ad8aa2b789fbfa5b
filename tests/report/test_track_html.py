"""The page and the text of a history: what they show, and that names from a file stay names."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.track.series import noisy, result

from flatout.records.tracking import SeriesCheck, TrackCheck, TrackedResult
from flatout.report.terminal import TextStyle
from flatout.report.track_charts import HEIGHT, MOST_COLUMNS, WIDTH, trend_chart
from flatout.report.track_html import track_html
from flatout.report.track_text import sparkline, track_text
from flatout.track.check import CheckRequest, check_history
from flatout.track.history_file import ResultHistory

COMMAND = ("flatout", "track", "check", "h")


def checked(results: list[TrackedResult], **options: Any) -> TrackCheck:
    return check_history(Path("h"), ResultHistory(results=tuple(results)), CheckRequest(**options))


def stepped(**options: Any) -> list[TrackedResult]:
    values = noisy([0.1] * 25 + [0.11] * 15, noise=0.005)
    return [
        result(number, float(value), environment={"torch": "2.10" if number < 25 else "2.11"}, **options)
        for number, value in enumerate(values)
    ]


def only(results: list[TrackedResult]) -> SeriesCheck:
    (series,) = checked(results).series
    return series


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name in ("src", "href")]
        if tag not in ("meta", "path", "rect", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_shows_the_change_its_commits_and_what_changed_there() -> None:
    page = track_html(checked(stepped(), gate=0.03), COMMAND)
    text = re.sub(r"<[^>]+>", "", page).replace("\u00a0", " ")
    assert "1 measure changed: 1 worse" in text
    assert "after c24, up to c25" in text
    assert "changed there: torch 2.10 -&gt; 2.11" in text
    assert "Gate failed" in text
    tags = Tags(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "default-src 'none'" in page


def test_a_name_from_a_history_is_text_on_the_page() -> None:
    page = track_html(checked(stepped(job='<script>alert(1)</script>" onload="x')), COMMAND)
    assert "script" not in Tags(page).seen
    assert "&lt;script&gt;" in page


def test_a_page_of_ten_thousand_results_is_below_a_megabyte() -> None:
    results = [result(number, 0.1 + 0.001 * (number % 7)) for number in range(10_000)]
    page = track_html(checked(results), COMMAND)
    assert len(page) < 1_000_000


def test_points_are_drawn_at_their_values() -> None:
    chart = trend_chart(only([result(number, value) for number, value in enumerate((1.0, 3.0, 2.0, 1.0))]))
    points = [tuple(map(float, point.split())) for point in re.findall(r"M([\d.]+ [\d.]+)h0", chart.points)]
    assert [x for x, _ in points] == [WIDTH * (number + 0.5) / 4 for number in range(4)]
    heights = [HEIGHT - y for _, y in points]
    assert heights[0] == heights[3] < heights[2] < heights[1]
    assert heights[2] == pytest.approx((heights[0] + heights[1]) / 2, abs=0.1)
    assert (chart.low, chart.high) == (1.0, 3.0)


def test_many_points_are_thinned_to_the_extremes_of_each_column() -> None:
    values = [1.0] * 5000
    values[2500] = 9.0
    chart = trend_chart(only([result(number, value) for number, value in enumerate(values)]))
    assert chart.points.count("h0") == 3 * MOST_COLUMNS
    assert chart.high == 9.0
    assert min(float(y) for y in re.findall(r" ([\d.]+)h0", chart.points)) < 10  # at the top


def test_the_mark_of_a_change_is_between_its_results() -> None:
    series = only(stepped())
    (mark,) = trend_chart(series).marks
    assert float(mark.x) == WIDTH * 25 / 40
    assert float(mark.low) < float(mark.x) < float(mark.low) + float(mark.width)
    assert mark.effect == "worse"


def test_the_text_has_a_chart_and_the_change() -> None:
    text = track_text(checked(stepped(), gate=0.03), style=TextStyle(width=100))
    assert "▁" in text and "█" in text
    assert "worse, +" in text
    assert "after c24, up to c25" in text
    assert "changed there: torch 2.10 -> 2.11" in text
    assert "Gate failed: 1 measure became worse by more than 3.0 % in the last 20 results" in text


def test_a_sparkline_has_the_median_of_each_place() -> None:
    style = TextStyle(has_unicode=False)
    assert sparkline([0.0, 7.0], style=style) == "_@"
    assert sparkline([5.0, 5.0, 5.0], style=style) == "___"
    values = [0.0] * 50 + [7.0] * 50
    values[10] = 100.0  # one outlier of its place
    assert sparkline(values, style=style, width=10) == "_____@@@@@"
