"""What is said about a history's results that are alike."""

from __future__ import annotations

import pytest

from flatout.records.tracking import SeriesCheck, TrackPoint
from flatout.report.terminal import TextStyle
from flatout.report.track_phrases import FEW_INDEPENDENT, correlation_sentence
from flatout.report.track_text import _series


def series(num_results: int, correlation: float) -> SeriesCheck:
    point = TrackPoint(value=0.1, low=None, high=None, commit=None, measured_unix_s=0.0)
    return SeriesCheck(
        job="train",
        machine="m",
        measure="step_s",
        unit="s",
        direction="lower",
        status="steady",
        level=0.1,
        points=(point,) * num_results,
        correlation=correlation,
    )


@pytest.mark.parametrize(("num_results", "is_few"), [(68, True), (72, False)])
def test_the_rate_is_qualified_where_few_results_are_independent(num_results: int, is_few: bool) -> None:
    """With a correlation of 0.4, seven results count as three."""
    sentence = correlation_sentence(series(num_results, 0.4))
    num_independent = round(num_results * 3 / 7)
    assert sentence.startswith(
        f"neighbouring results are alike (correlation 0.4): the {num_results} results count as {num_independent} "
    )
    assert ("false changes can be about twice as frequent as stated" in sentence) is is_few
    assert FEW_INDEPENDENT == 30


@pytest.mark.parametrize(("correlation", "is_strong"), [(0.49, False), (0.5, True)])
def test_the_rate_is_qualified_for_a_strong_correlation(correlation: float, is_strong: bool) -> None:
    assert ("about twice" in correlation_sentence(series(300, correlation))) is is_strong


def test_independent_results_are_not_spoken_of() -> None:
    assert "alike" not in "".join(_series(series(40, 0.0), TextStyle()))
    assert "alike" in "".join(_series(series(40, 0.5), TextStyle()))
