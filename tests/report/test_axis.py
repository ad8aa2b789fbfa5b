from __future__ import annotations

import random
from itertools import pairwise

import pytest

from flatout.records.diagnosis import StepDiagnosis
from flatout.report.axis import BEFORE, WIDTHS, Label, step_labels, ticks


def steps_of(*windows_s: float, first: int = 1) -> list[StepDiagnosis]:
    made, start_s = [], 0.0
    for number, window_s in enumerate(windows_s, first):
        made.append(StepDiagnosis(step=number, start_s=start_s, window_s=window_s, parts_s={}))
        start_s += window_s
    return made


def labels_of(*windows_s: float, first: int = 1) -> list[Label]:
    return step_labels(steps_of(*windows_s, first=first), 0.0, sum(windows_s))


def shown(labels: list[Label], width: str) -> list[str]:
    """The numbers in a chart that has just the width of a class of labels."""
    sizes = list(WIDTHS)
    return [label.text for label in labels if sizes.index(label.size) <= sizes.index(width)]


@pytest.mark.parametrize("seed", range(30))
def test_numbers_never_lie_over_each_other(seed: int) -> None:
    noise = random.Random(seed)
    windows = [noise.choice([0.001, 0.03, 1, 1.01]) for _ in range(noise.randrange(1, 300))]
    labels = labels_of(*windows, first=noise.choice([1, 95, 99_950]))
    for number, (size, width_px) in enumerate(WIDTHS.items()):
        visible = [label for label in labels if list(WIDTHS).index(label.size) <= number]
        spans = [(label.left * width_px - 8.3 * len(label.text) * label.is_before, label) for label in visible]
        for (left_px, label), (next_px, _) in pairwise(spans):
            assert left_px + 8.3 * len(label.text) < next_px, (size, label)
        assert visible


def test_evenly_spaced_steps_have_round_numbers() -> None:
    labels = labels_of(*[1.0] * 100)
    assert {"50", "100"} < set(shown(labels, ""))
    assert {"10", "20", "30", "90"} < set(shown(labels, "wide"))


def test_a_long_step_has_its_number_before_its_short_neighbours() -> None:
    assert shown(labels_of(3.4, 0.04, 3.5), "") == ["1", "3"]
    assert "5" in shown(labels_of(*[0.02] * 4, 2.0, *[0.02] * 4), "")


def test_a_number_near_the_edge_stands_before_its_mark() -> None:
    labels = labels_of(*[1.0] * 10)
    assert all(label.is_before == (label.left > BEFORE) for label in labels)
    assert labels[-1].is_before


@pytest.mark.parametrize("span_s", [3e-6, 0.004, 0.37, 2.0, 59.0, 4000.0])
def test_ticks_are_few_round_and_inside(span_s: float) -> None:
    made = ticks(0.1 * span_s, span_s)
    assert 3 <= len(made) <= 7
    assert all(0 <= left <= 0.82 for left, _ in made)
    assert len({text for _, text in made}) == len(made)
