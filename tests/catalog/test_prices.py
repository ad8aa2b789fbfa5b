"""Prices and carbon: values typed from their sources, names as schedulers and drivers write them, and users' files."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from flatout.catalog import all_gpu_facts
from flatout.catalog.carbon import all_grids, grid_carbon
from flatout.catalog.prices import TERMS, all_prices, gpu_named, read_prices
from flatout.errors import InputError, UsageError


@pytest.mark.parametrize(
    ("name", "terms", "usd"),
    [
        ("h100", "on-demand", (1.99, 2.95, 5.00)),
        ("nvidia_h100_80gb_hbm3", "spot", (0.80, 1.25, 2.50)),
        ("NVIDIA H200", "on-demand", (2.50, 3.50, 7.00)),
        ("B200 180GB", "on-demand", (4.89, 5.50, 5.50)),
        ("a100_1g.10gb", "on-demand", (0.80, 1.29, 3.00)),
    ],
)
def test_prices_are_as_their_sources_have_them(name: str, terms: str, usd: tuple[float, float, float]) -> None:
    (wanted,) = (known for known in TERMS if known == terms)
    price = all_prices().gpu(name, wanted)
    assert price is not None
    assert (price.low, price.typical, price.high) == usd


def test_a_gpu_that_is_not_known_has_no_price() -> None:
    for name in ("", "volta", "1g.10gb", "h1000", "gpu"):
        assert gpu_named(name) is None
        assert all_prices().gpu(name) is None


def test_each_entry_is_in_order_and_dated() -> None:
    known = all_prices()
    names = {facts.name for facts in all_gpu_facts()}
    for price in known.gpus:
        assert price.gpu in names
        assert date.fromisoformat(price.date) and price.source
    for each in (*known.gpus, known.electricity, known.pue, known.host, known.busy_power_share, known.idle_power_share):
        assert 0 < each.low <= each.typical <= each.high
        assert each.source and each.date
    assert len({(price.gpu, price.terms) for price in known.gpus}) == len(known.gpus)
    assert known.busy_power_share.high == 1
    assert known.idle_power_share.high < known.busy_power_share.low


def test_spot_is_cheaper_than_reserved_and_that_than_on_demand() -> None:
    for gpu in {price.gpu for price in all_prices().gpus}:
        found = [
            price.typical for terms in ("spot", "reserved", "on-demand") if (price := all_prices().gpu(gpu, terms))
        ]  # type: ignore[arg-type]
        assert found == sorted(found)


def test_a_file_of_ones_own_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(
        '[[price]]\ngpu = "h100"\nterms = "on-demand"\ntypical = 1.5\n\n'
        '[[price]]\ngpu = "our-card"\nterms = "spot"\nlow = 0.1\ntypical = 0.2\nhigh = 0.3\n\n[pue]\ntypical = 1.05\n'
    )
    own = read_prices(path)
    path.write_text("electricity = 0.07\npue = 1\n")
    assert (read_prices(path).electricity.high, read_prices(path).pue.low) == (0.07, 1)
    price, card = own.gpu("NVIDIA H100 80GB HBM3"), own.gpu("our-card", "spot")
    assert price is not None and (price.low, price.typical, price.high, price.provenance) == (
        1.5,
        1.5,
        1.5,
        "measured",
    )
    assert card is not None and card.high == 0.3
    assert own.gpu("h200") == all_prices().gpu("h200")
    assert (own.pue.low, own.pue.high, own.host) == (1.05, 1.05, all_prices().host)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not toml", "is not valid TOML"),
        (
            "[[price]]\ngpu = 'h100'\nterms = 'cheap'\ntypical = 1.0\n",
            'terms` must be one of "on-demand", "reserved", "spot", but is "cheap"',
        ),
        ("[[price]]\ngpu = 'h100'\nterms = 'spot'\nlow = 3.0\ntypical = 1.0\n", "low <= typical <= high"),
        (
            "[[price]]\ngpu = 'h100'\nterms = 'spot'\ntypical = -1.0\n",
            "the price of h100 must be from 0",
        ),
        ("[[price]]\ngpu = 'h100'\nterms = 'spot'\ntypical = 1000.1\n", "the price of h100 must be from 0 to 1,000"),
        ("[pue]\ntypical = 0.99\n", "pue must be from 1 to 10"),
        ("[host]\ntypical = 0.5\n", "host must be from 1 to 10"),
        ("[busy_power_share]\ntypical = 1.1\n", "busy_power_share must be from 0 to 1"),
        ("[electricity]\ntypical = 11\n", "electricity must be from 0 to 10"),
        (
            "[[price]]\ngpu = 'h100'\nterms = 'spot'\ntypical = 1.0\ncurrency = 'EUR'\n",
            "`currency` in .* is not a known",
        ),
        ("[price]\ngpu = 'h100'\n", "`price` must be a list, each item a table"),
        ("[pues]\ntypical = 1.0\n", "`pues` is not a known name; the nearest one is `pue`"),
        ("pue = true\n", "`pue` must be a number or a table with typical, but is true"),
        ("pue = 'low'\n", '`pue` must be a number or a table with typical, but is "low"'),
        ("[pue]\ntypical = nan\n", "low <= typical"),
    ],
)
def test_a_file_of_another_form_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_prices(path)
    assert "\n" not in str(caught.value)


def test_grids_are_found_by_code_name_and_cloud_region() -> None:
    assert grid_carbon("FR").g_per_kwh == 31
    assert grid_carbon("us-east-1") == grid_carbon("PJM, USA") == grid_carbon("us-mida-pjm")
    assert grid_carbon("United States").g_per_kwh == 414


def test_a_name_belongs_to_one_grid() -> None:
    owners: dict[str, str] = {}
    for grid in all_grids():
        for name in {each.casefold() for each in (grid.zone, grid.name, *grid.aliases)}:
            assert owners.setdefault(name, grid.zone) == grid.zone
        assert 10 < grid.g_per_kwh < 800


def test_a_grid_that_is_not_known_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no grid named `us-est-1`") as caught:
        grid_carbon("us-est-1")
    assert "us-east-1" in caught.value.hint
