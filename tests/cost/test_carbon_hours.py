"""When a job emits least: means worked out by hand, and files that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.cost.carbon_hours import carbon_advice
from flatout.errors import InputError, UsageError
from flatout.read.carbon_hours import read_carbon_hours
from flatout.records.carbon import CarbonHours

DAY = "hour,g_per_kwh\n" + "".join(f"{hour},{100 if 2 <= hour < 8 else 200}\n" for hour in range(24))


def hours(*amounts: float) -> CarbonHours:
    names = tuple(f"2026-12-01T{hour:02d}:00" for hour in range(len(amounts)))
    return CarbonHours(hours=names, g_per_kwh=amounts, is_daily=False)


def written(folder: Path, text: str) -> Path:
    path = folder / "hours.csv"
    path.write_text(text)
    return path


def test_the_cleanest_hours_of_a_day_repeat_after_midnight(tmp_path: Path) -> None:
    found = read_carbon_hours(written(tmp_path, DAY))
    advice = carbon_advice(found, path="x", duration_h=6, now=20, power_w=2000)
    assert (advice.best.hour, advice.best.delay_h, advice.best.less) == ("02:00", 6, pytest.approx(1 - 600 / 1200))
    assert (advice.now.g_per_kwh, advice.now.kg_co2) == (pytest.approx(200), pytest.approx(2 * 6 * 200 / 1000))
    assert (advice.best.g_per_kwh, advice.best.kg_co2) == (pytest.approx(100), pytest.approx(1.2))
    assert len(advice.starts) == 24


def test_parts_of_an_hour_count_in_parts_and_the_soonest_of_equals_is_best() -> None:
    advice = carbon_advice(hours(300, 100, 200, 100, 200, 400), path="x", duration_h=1.5, now=0)
    assert [start.g_per_kwh for start in advice.starts] == pytest.approx(
        [(300 + 50) / 1.5, (100 + 100) / 1.5, (200 + 50) / 1.5, (100 + 100) / 1.5, (200 + 200) / 1.5]
    )
    assert advice.best.delay_h == 1 and advice.best.less == pytest.approx(1 - 200 / 350)


def test_the_file_must_reach_to_the_end_of_the_job() -> None:
    carbon_advice(hours(1, 2, 3), path="x", duration_h=3, now=0)
    with pytest.raises(InputError, match=r"must have the hours of the whole job, 3\.1 h from 2026-12-01T00:00"):
        carbon_advice(hours(1, 2, 3), path="x", duration_h=3.1, now=0)
    with pytest.raises(UsageError, match="the latest start must be at most 1 h from now"):
        carbon_advice(hours(1, 2, 3), path="x", duration_h=2, now=0, most_delay_h=2)
    assert carbon_advice(hours(3, 2, 1), path="x", duration_h=1, now=0, most_delay_h=1).best.delay_h == 1


def test_a_grid_without_emissions_saves_nothing() -> None:
    advice = carbon_advice(hours(0, 0, 0), path="x", duration_h=1, now=0)
    assert (advice.best.delay_h, advice.best.less) == (0, 0.0)


def test_dates_are_read_with_and_without_a_time_zone(tmp_path: Path) -> None:
    for zone in ("", "+01:00", "Z"):
        text = f"g_per_kwh,hour,note\n412,2026-12-01T23:00{zone},a\n398,2026-12-02T00:00{zone},b\n"
        found = read_carbon_hours(written(tmp_path, text))
        assert (found.g_per_kwh, found.is_daily) == ((412.0, 398.0), False)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hour\n1\n", "must have the columns hour, g_per_kwh, but has no g_per_kwh"),
        ("hour,g_per_kwh\n", "has a header and no hour"),
        ("hour,g_per_kwh\n0,1\n1,2\n", "must have each hour of a day from 0 to 23 once, but has 2 rows"),
        (DAY.replace("\n7,", "\n8,"), "must have each hour of a day from 0 to 23 once"),
        (DAY.replace("\n7,100", "\n7,-1"), "line 9: g_per_kwh must be a number from 0 to 3,000, but is `-1`"),
        (DAY.replace("\n7,100", "\n7,nan"), "line 9: g_per_kwh must be a number"),
        (DAY.replace("\n7,100", "\n7,3001"), "line 9: g_per_kwh must be a number"),
        ("hour,g_per_kwh\nnoon,1\n", "line 2: hour must be 0 to 23 or 2026-12-01T00:00, but is `noon`"),
        (
            "hour,g_per_kwh\n2026-12-01T00:00,1\n2026-12-01T02:00,1\n",
            "line 3: must be 1 h after line 2, but is 2 h after it",
        ),
        (
            "hour,g_per_kwh\n2026-12-01T00:00,1\n2026-12-01T01:00Z,1\n",
            "must name the time zone of each hour or of none",
        ),
    ],
)
def test_hours_that_make_no_sense_are_refused_in_one_line(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        read_carbon_hours(written(tmp_path, text))
    assert problem in str(refused.value) and "\n" not in str(refused.value)
