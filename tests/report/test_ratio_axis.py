from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flatout.report.ratio_axis import HIGHEST, LOWEST, MARK_DISTANCE, ratio_axis

RATIOS = st.lists(st.floats(LOWEST, HIGHEST), max_size=6)


@given(RATIOS)
def test_every_ratio_and_one_lie_on_the_axis_in_their_order(ratios: list[float]) -> None:
    axis = ratio_axis(ratios)
    places = [axis.place(ratio) for ratio in sorted([1.0, *ratios])]
    assert places == sorted(places)
    assert places[0] > 0
    assert places[-1] < 1


@given(RATIOS)
def test_one_is_marked_and_no_mark_touches_another(ratios: list[float]) -> None:
    marks = ratio_axis(ratios).marks()
    assert "1x" in [text for _, text in marks]
    assert all(right - left >= MARK_DISTANCE - 1e-9 for (left, _), (right, _) in pairwise(marks))
    assert all(0 <= place <= 1 for place, _ in marks)


def test_twice_and_half_as_fast_are_equally_far_from_one() -> None:
    axis = ratio_axis([0.5, 2.0])
    assert math.isclose(axis.place(2) - axis.place(1), axis.place(1) - axis.place(0.5))


def test_what_is_not_finite_or_off_the_scale_is_put_at_the_end() -> None:
    assert ratio_axis([math.inf, math.nan]).place(math.inf) == 1
    assert ratio_axis([0.0, 1e9]).high < 1e4
