"""Where steps end, from sequences of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.inside.recording.step_detector import MAX_STEPS_WITHOUT_CLOSER, StepDetector, StepSource


def ends(detector: StepDetector, events: str) -> str:
    """`|` after each event that ends a step, `<` where all before belongs to the first. Capitals are optimizers."""
    shown = ""
    for event in events:
        if event == "b":
            closes = detector.batch()
        elif event == "w":
            closes = detector.backward()
        else:
            closes = detector.optimizer(event)
        # A batch and a backward pass end the step before them.
        mark = ("<" if detector.restarts else "") + ("|" if closes else "")
        shown += mark + event if event in "bw" else event + mark
    return shown


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("bwAbwA", "bwA|bwA|"),
        ("wwAwwA", "w|wA<|wwA|"),
        ("bwbwAbwbwA", "bw|bwA<|bwbwA|"),
        ("wDwGwDwG", "wD|wG<|wDwG|"),
        ("DDDGDDDG", "D|D|D|G<|DDDG|"),
        ("bbb", "b|b|b"),
        ("www", "w|w|w"),
        ("bwbw", "bw|bw"),
        ("bbbwA", "b|b|bwA<|"),
    ],
)
def test_ends_of_steps(events: str, expected: str) -> None:
    assert ends(StepDetector(), events) == expected


def test_one_optimizer_a_layer_is_one_step() -> None:
    layers = "ZYXWVUT"
    detector = StepDetector()
    ends(detector, layers)
    assert ends(detector, layers * 3) == "".join(f"{layers}|" * 3)


def test_an_optimizer_that_is_no_longer_used_stops_closing() -> None:
    detector = StepDetector()
    ends(detector, "AB")
    assert "|" not in ends(detector, "A" * MAX_STEPS_WITHOUT_CLOSER)
    assert ends(detector, "AAA") == "A|A|A|"


def test_an_optimizer_takes_the_place_of_one_that_is_gone() -> None:
    """Rounds of federated learning, folds of a cross-validation: each has an optimizer of its own."""
    detector = StepDetector()
    assert ends(detector, "wAwA") == "wA|wA|"
    detector.optimizer_is_gone("A")
    assert ends(detector, "wBwB") == "wB|wB|"
    detector.optimizer_is_gone("B")
    assert ends(detector, "wAwA") == "wA|wA|"  # at the same address


def test_a_loader_that_has_no_more_begins_no_step() -> None:
    detector = StepDetector()
    assert ends(detector, "bwbwb") == "bw|bw|b"
    detector.no_batch()
    assert ends(detector, "bwbw") == "bw|bw"


@given(st.text("bwAD", max_size=60))
def test_once_there_is_an_optimizer_only_optimizers_end_steps(events: str) -> None:
    detector = StepDetector()
    detector.optimizer("A")
    shown = ends(detector, events)
    assert "|b" not in shown.replace("A|", "A").replace("D|", "D").replace("D<|", "D")
    assert detector.source is StepSource.OPTIMIZER
