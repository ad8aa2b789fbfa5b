"""Buying compared with renting: numbers worked out by hand, both sides of each bound, and what is unknown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flatout.cli import main

# Per month at full work: rent 64 * 730.5 * 2.5 = 116,880. Electricity per watt: 64 * 730.5 / 1000 * 1.3 * 0.11 =
# 6.6856, so 8,357 at work and 3,008.5 at rest. People 16,666.67.
BASE: dict[str, str] = {
    "num_gpus": "64",
    "currency": '"USD"',
    "price": "2_400_000",
    "life_years": "5",
    "utilisation": "0.7",
    "power_w_per_gpu": "1250",
    "idle_power_w_per_gpu": "450",
    "pue": "1.3",
    "electricity_per_kwh": "0.11",
    "people_per_year": "200_000",
    "rent_per_gpu_hour": "2.5",
}
Buy = Callable[..., Any]


@pytest.fixture
def buy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Buy:
    path = tmp_path / "ownership.toml"

    def run(*options: str, code: int = 0, is_json: bool = True, **changes: str | None) -> Any:
        values = {name: value for name, value in {**BASE, **changes}.items() if value is not None}
        path.write_text("".join(f"{name} = {value}\n" for name, value in values.items()))
        words = ["flatout", "cost", "buy", str(path), *options, *(["--json"] if is_json else [])]
        monkeypatch.setattr(sys, "argv", words)
        ended = main()
        out, err = capfd.readouterr()
        assert ended == code, err
        if code:
            return err
        return json.loads(out) if is_json else out

    return run


def test_the_break_even_is_that_worked_out_by_hand(buy: Buy) -> None:
    said = buy()
    assert (said["schema"], said["version"], said["verdict"]) == ("flatout/buy-or-rent", 1, "buy")
    # (2,400,000 + 60 * (16,666.67 + 3,008.5)) / (60 * (116,880 - (8,357 - 3,008.5)))
    assert said["break_even_utilisation"]["value"] == pytest.approx(0.53505, abs=1e-5)
    # 81,816 of rent saved per month, less 16,666.67 and 0.7 * 8,357 + 0.3 * 3,008.5: 58,396.9 of 2,400,000
    assert said["break_even_month"]["value"] == 42
    assert said["own_total"]["value"] == pytest.approx(2_400_000 + 60 * (16_666.667 + 6_752.46), rel=1e-5)
    assert said["rent_total"]["value"] == pytest.approx(60 * 81_816, rel=1e-9)
    hours = 64 * 730.5 * 60 * 0.7
    assert said["own_per_gpu_hour"]["value"] == pytest.approx(said["own_total"]["value"] / hours)
    assert said["spare_per_year"] == pytest.approx((4_908_960 - said["own_total"]["value"]) / 5, rel=1e-6)
    assert said["not_counted"] == ["cooling", "space", "maintenance"]


def test_above_the_break_even_utilisation_buying_costs_less_and_below_it_renting(buy: Buy) -> None:
    above, below = buy(utilisation="0.5351"), buy(utilisation="0.5350")
    assert (above["verdict"], below["verdict"]) == ("buy", "rent")
    assert above["break_even_month"]["value"] == 60 and below["break_even_month"]["value"] is None
    assert "in each of the 60 months of the life" in below["break_even_month"]["reason"]
    assert below["spare_per_year"] is None


def test_the_residual_value_counts_at_the_end_only(buy: Buy) -> None:
    said = buy(utilisation="0.52", residual_value="240_000")
    assert (said["verdict"], said["break_even_month"]["value"]) == ("buy", 60)
    assert buy(utilisation="0.52")["verdict"] == "rent"
    assert buy(residual_value="240_000")["break_even_month"]["value"] == 42, "it is not sold before"


def test_interest_makes_money_of_the_first_day_dearer(buy: Buy) -> None:
    with_interest = buy(interest_per_year="0.06")
    rate = 1.06 ** (1 / 12) - 1
    months_of_money = (1 - (1 + rate) ** -60) / rate
    assert with_interest["rent_total"]["value"] == pytest.approx(81_816 * months_of_money)
    assert with_interest["break_even_month"]["value"] > 42
    # 2,400,000 = 58,396.9 * (1 - (1 + rate) ** -n) / rate at n = 45.6
    assert with_interest["break_even_month"]["value"] == 46


def test_bounds_of_the_inputs_bound_the_result(buy: Buy) -> None:
    said = buy(rent_per_gpu_hour="{ low = 1.8, typical = 2.5, high = 4.0 }")
    utilisation = said["break_even_utilisation"]
    assert utilisation["low"] == pytest.approx(buy(rent_per_gpu_hour="4.0")["break_even_utilisation"]["value"])
    assert utilisation["high"] == pytest.approx(buy(rent_per_gpu_hour="1.8")["break_even_utilisation"]["value"])
    assert said["verdict"] == "undecided"


def test_where_inputs_that_favour_renting_have_no_break_even_none_is_said(buy: Buy) -> None:
    rent = "{ low = 0.05, typical = 2.5, high = 4.0 }"
    said = buy(rent_per_gpu_hour=rent)
    assert said["break_even_utilisation"]["high"] is None and said["break_even_month"]["high"] is None
    assert said["break_even_utilisation"]["value"] == pytest.approx(0.53505, abs=1e-5)
    text = " ".join(buy(rent_per_gpu_hour=rent, is_json=False).split())
    assert "break-even month: 42 (from 23, and none if the inputs favour renting)" in text


def test_where_an_hour_of_rent_costs_less_than_its_electricity_no_utilisation_is_enough(buy: Buy) -> None:
    said = buy(rent_per_gpu_hour="0.05")
    assert said["break_even_utilisation"]["value"] is None and said["verdict"] == "rent"
    assert "at any utilisation" in said["break_even_utilisation"]["reason"]
    text = buy(rent_per_gpu_hour="1.0", is_json=False)
    assert "break-even utilisation: none, renting costs less even if the GPUs work all the time" in " ".join(
        text.split()
    )


def test_what_is_not_given_is_said_and_not_counted_as_0(buy: Buy) -> None:
    said = buy(utilisation=None)
    assert said["verdict"] == "unknown" and said["break_even_month"]["value"] is None
    assert said["break_even_utilisation"]["value"] == pytest.approx(0.53505, abs=1e-5), "it needs no utilisation"
    said = buy(power_w_per_gpu=None, idle_power_w_per_gpu=None)
    assert said["verdict"] == "unknown"
    assert said["break_even_month"]["reason"] == "the power is unknown (give power_w_per_gpu, or gpu)"
    said = buy(rent_per_gpu_hour=None)
    assert said["break_even_utilisation"]["reason"].startswith("the rent of these GPUs is unknown")
    text = buy(rent_per_gpu_hour=None, is_json=False)
    assert "which costs less is unknown" in text and "unknown: the rent of these GPUs" in " ".join(text.split())


def test_the_catalogue_fills_in_power_and_rent_of_a_named_gpu(buy: Buy) -> None:
    said = buy(power_w_per_gpu=None, idle_power_w_per_gpu=None, rent_per_gpu_hour=None, gpu='"h100"')
    assert said["verdict"] != "unknown" and said["rent_per_gpu_hour"]["value"] == 2.95
    assert any("--terms reserved" in note for note in said["notes"])
    reserved = buy("--terms", "reserved", rent_per_gpu_hour=None, gpu='"h100"')
    assert reserved["rent_per_gpu_hour"]["value"] == 2.35
    assert buy("--gpu-price", "3.5")["rent_per_gpu_hour"]["value"] == 3.5


def test_the_catalogues_usd_are_no_euros(buy: Buy) -> None:
    said = buy(currency='"EUR"', rent_per_gpu_hour=None, gpu='"h100"')
    assert said["verdict"] == "unknown" and "the rent in EUR is unknown" in said["break_even_month"]["reason"]
    said = buy(currency='"EUR"', electricity_per_kwh=None)
    assert "the price of electricity in EUR is unknown" in said["break_even_month"]["reason"]
    assert buy(currency='"EUR"')["verdict"] == "buy"
    assert "the file names no currency: USD is assumed" in buy(currency=None)["notes"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"price": None}, "`price` is missing: it must be a number"),
        ({"num_gpus": "0"}, "num_gpus"),
        ({"price": "-1"}, "`price` must be from 0"),
        ({"price": "nan"}, "`price` must be from 0"),
        ({"price": "inf"}, "`price` must be from 0"),
        ({"utilisation": "70"}, "`utilisation` must be from 0 to 1, but is 70"),
        ({"utilisation": "1.01"}, "`utilisation` must be from 0 to 1"),
        ({"interest_per_year": "6"}, "`interest_per_year` must be from 0 to 1"),
        ({"pue": "0.9"}, "`pue` must be from 1 to 10"),
        ({"life_years": "0"}, "`life_years` must be from 0.0833 to 50"),
        ({"life_years": "51"}, "`life_years` must be from"),
        ({"electricity_per_kwh": "110"}, "`electricity_per_kwh` must be from 0 to 100"),
        ({"residual_value": "2_400_001"}, "`residual_value` must be at most the price"),
        ({"currency": '"dollars"'}, "currency"),
        ({"gpu": '"h1000"'}, "must be a GPU in the catalogue"),
        ({"people": "1"}, "`people` is not a known name; the nearest one is"),
        ({"rent_per_gpu_hour": "{ low = 3, typical = 2.5 }"}, "must have low <= typical <= high"),
        ({"rent_per_gpu_hour": "{ low = 3 }"}, "`rent_per_gpu_hour.typical` is missing"),
        ({"rent_per_gpu_hour": "true"}, "rent_per_gpu_hour"),
    ],
)
def test_what_is_impossible_is_refused_in_one_line(buy: Buy, changes: dict[str, str | None], why: str) -> None:
    error = buy(code=2, **changes)
    assert error.startswith("error: ") and why in error.splitlines()[0] and len(error.splitlines()) <= 2


def test_the_table_says_both_costs_and_where_they_cross(buy: Buy) -> None:
    text = buy(is_json=False)
    lines = text.splitlines()
    assert lines[0] == "64 GPUs for 5 years: buying costs less"
    assert any(line.split()[:2] == ["people", "200,000"] for line in lines)
    assert "break-even utilisation: 54 %, given: 70 %" in text and "break-even month: 42" in text
    assert [line for line in lines if len(line) > 80 and not line.startswith("next: ")] == []
