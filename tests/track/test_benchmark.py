"""A slice of `benchmarks/track_change_points.py`: found changes and false ones, without Apache Otava."""

from __future__ import annotations

from benchmarks.track_change_points import histories, ours, tallies


def test_changes_are_found_and_patterns_of_machines_are_none() -> None:
    made = histories(60, seed=3)
    scores = tallies(made, [[ours(values) for values in history["series"]] for history in made])
    assert scores["steps"]["found"] >= 0.6 * scores["steps"]["true"]
    assert scores["outliers"]["series with a false change"] <= 1
    assert scores["two states"]["series with a false change"] <= 1
    assert scores["drift"]["series with a false change"] <= 3
    assert scores["machine swaps"]["series with a false change"] <= 2
