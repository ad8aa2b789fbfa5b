"""Where variants and the numbers of the axes stand in the chart of speed by size."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.report.pareto_chart import HEIGHT, WIDTH, ParetoPoint, pareto_chart


def chart(*places: tuple[float, float]) -> dict[str, Any]:
    points = [(1.0, 1.0), *places]
    return pareto_chart([ParetoPoint(name="v", kind="other", size=size, speedup=speed) for size, speed in points])


def texts(ticks: list[dict[str, Any]]) -> list[str]:
    return [tick["text"] for tick in ticks]


def test_the_axes_have_round_numbers_and_the_untouched_model() -> None:
    drawn = chart((0.25, 4.0), (0.5, 0.6))
    assert texts(drawn["size_ticks"]) == ["0 %", "25 %", "50 %", "75 %", "100 %"]
    assert texts(drawn["speed_ticks"]) == ["1x", "2x", "4x"]
    assert [tick["is_equal"] for tick in drawn["speed_ticks"]] == [True, False, False]


@pytest.mark.parametrize(
    ("places", "sizes", "speeds"),
    [
        ([(1.0, 1.0)], 5, ["1x", "1.1x"]),
        ([(0.9, 1.4)], 5, ["1x", "1.1x", "1.2x", "1.3x", "1.4x"]),
        ([(3.0, 1000.0)], 4, ["1x", "4x", "16x", "64x", "256x"]),
    ],
)
def test_a_narrow_and_a_wide_range(places: list[tuple[float, float]], sizes: int, speeds: list[str]) -> None:
    drawn = chart(*places)
    assert (len(drawn["size_ticks"]), texts(drawn["speed_ticks"])) == (sizes, speeds)


def test_points_and_ticks_are_on_one_scale() -> None:
    """Half as fast is as far below the untouched model as twice as fast is above it; all is inside the chart."""
    drawn = chart((0.5, 2.0), (1.5, 0.5))
    points = [(float(point["x"]), float(point["y"])) for point in drawn["points"]]
    assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in points)
    equal, fast, slow = (y for _, y in points)
    assert slow - equal == pytest.approx(equal - fast, abs=0.2)
    ticks = {tick["text"]: float(tick["y"]) for tick in drawn["speed_ticks"]}
    assert (ticks["1x"], ticks["2x"]) == (equal, fast)
    sizes = {tick["text"]: float(tick["x"]) for tick in drawn["size_ticks"]}
    assert (sizes["50 %"], sizes["100 %"]) == (points[1][0], points[0][0])
