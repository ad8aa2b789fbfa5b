"""Power caps: against medians of the public curves made with the csv module alone, and curves typed for the purpose."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

import msgspec
import pytest

from flatout.catalog.prices import all_prices, exactly
from flatout.cost.power_cap import cap_advice
from flatout.errors import InputError
from flatout.read.power_curve import read_power_curve
from flatout.records.power import CapAdvice, PowerSample


def curve(workload: str, *points: tuple[float, float, float]) -> list[PowerSample]:
    return [
        PowerSample(configuration=(workload,), workload=(workload,), limit_w=limit, time_s=time_s, power_w=power_w)
        for limit, time_s, power_w in points
    ]


def advice(samples: list[PowerSample], usd_per_gpu_hour: float | None = None, **options: float) -> CapAdvice:
    return cap_advice(samples, path="curve.csv", prices=all_prices(), usd_per_gpu_hour=usd_per_gpu_hour, **options)


@pytest.fixture(scope="session")
def public(shared_data: Path) -> Path:
    return shared_data / "job_traces" / "zeus_power"


@pytest.mark.parametrize(
    ("gpu", "limit_w", "time", "energy"),
    [
        # As the published curves were summed up before: V100 150 W +11 % time, -19 % energy; 175 W +6, -16; ...
        ("v100", 150, 0.11, -0.19),
        ("v100", 175, 0.06, -0.16),
        ("rtx6000", 150, 0.10, -0.22),
        ("a40", 175, 0.08, -0.16),
        ("p100", 175, 0.02, -0.05),
    ],
)
def test_public_curves_give_their_known_medians(
    public: Path, gpu: str, limit_w: float, time: float, energy: float
) -> None:
    path = public / f"summary_power_{gpu}.csv"
    groups: dict[tuple[str, ...], dict[float, tuple[float, float]]] = defaultdict(dict)
    with path.open() as file:
        for row in csv.DictReader(file):
            key = tuple(row[name] for name in ("dataset", "network", "batch_size", "optimizer"))
            groups[key][float(row["power_limit"])] = (float(row["time_per_epoch"]), float(row["average_power"]))
    top = max(limit for points in groups.values() for limit in points)
    pairs = [(points[limit_w], points[top]) for points in groups.values() if limit_w in points and top in points]
    found = advice(list(read_power_curve(path)))
    (point,) = (each for each in found.points if each.limit_w == limit_w)
    assert point.num_configurations == len(pairs)
    assert point.time.value == pytest.approx(median(one[0] / other[0] for one, other in pairs))
    assert point.energy.value == pytest.approx(median(one[0] * one[1] / (other[0] * other[1]) for one, other in pairs))
    assert round(point.time.value - 1, 2) == time
    assert point.energy.value - 1 == pytest.approx(energy, abs=0.006)
    assert point.time.low < point.time.value < point.time.high
    assert found.num_workloads == 6


@pytest.mark.parametrize(("gpu", "knee_w"), [("v100", 150), ("rtx6000", 150), ("a40", 175)])
def test_public_knees_lie_at_58_to_60_percent_of_the_limit(public: Path, gpu: str, knee_w: float) -> None:
    assert advice(list(read_power_curve(public / f"summary_power_{gpu}.csv"))).knee_w == knee_w


def test_who_rents_pays_for_time_and_an_owner_for_both() -> None:
    prices = msgspec.structs.replace(all_prices(), host=exactly(1.5, ""), pue=exactly(1.2, ""))
    samples = curve("a", (300, 100.0, 300.0), (200, 110.0, 190.0))
    found = cap_advice(samples, path="x", prices=prices, usd_per_gpu_hour=1.0, usd_per_kwh=0.1)
    _, capped = found.points
    assert (capped.time.value, capped.rented.value) == (pytest.approx(1.1), pytest.approx(1.1))
    assert capped.energy.value == pytest.approx(110 * 190 / (100 * 300))
    # An hour costs 1 USD and (power + half of 300 W for the host) x 1.2 at 0.1 USD a kWh.
    before, after = (1 + (300 + 150) * 1.2 / 1000 * 0.1) * 100, (1 + (190 + 150) * 1.2 / 1000 * 0.1) * 110
    assert capped.owned is not None and capped.owned.value == pytest.approx(after / before)
    assert (found.cheapest_w, found.pays) == (300, False)
    saved = 100 * 450 * 1.2 - 110 * 340 * 1.2
    assert found.break_even_usd_per_gpu_hour == pytest.approx(saved / 1000 * 0.1 / 10)


def test_at_its_break_even_price_the_knee_costs_as_much_as_no_cap() -> None:
    samples = curve("a", (300, 100.0, 300.0), (200, 105.0, 190.0))
    price = advice(samples).break_even_usd_per_gpu_hour
    assert price is not None
    capped = advice(samples, price).points[1]
    assert capped.owned is not None and capped.owned.value == pytest.approx(1)
    assert advice(samples, price * 0.9).pays is True
    assert advice(samples, price * 1.1).pays is False


def test_where_a_cap_costs_no_time_it_pays_at_any_price() -> None:
    found = advice(curve("a", (300, 100.0, 200.0), (250, 100.0, 180.0)), 100.0)
    assert (found.cheapest_w, found.pays, found.break_even_usd_per_gpu_hour) == (250, True, None)


def test_workloads_that_differ_leave_it_undecided() -> None:
    samples = [
        *curve("a", (300, 100.0, 300.0), (200, 100.0, 190.0)),
        *curve("b", (300, 100.0, 300.0), (200, 102.0, 190.0)),
        *curve("c", (300, 100.0, 300.0), (200, 150.0, 190.0)),
    ]
    found = advice(samples, 0.2)
    assert (found.cheapest_w, found.pays) == (200, False)


def test_configurations_without_the_highest_limit_are_counted() -> None:
    samples = [*curve("a", (300, 100.0, 300.0), (200, 110.0, 190.0)), *curve("b", (200, 100.0, 190.0))]
    found = advice(samples)
    assert (found.num_left_out, found.num_configurations) == (1, 1)
    with pytest.raises(InputError, match="must have a configuration at 300 W and at a lower limit"):
        advice([*curve("a", (300, 100.0, 300.0)), *curve("b", (200, 100.0, 190.0))])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no power_limit, time_per_epoch, average_power"),
        ("power_limit,time_per_epoch\n1,2\n", "has no average_power"),
        ("power_limit,time_per_epoch,average_power\n", "a header and no measurement"),
        ("power_limit,time_per_epoch,average_power\n300,1,2\n200,x,3\n", "line 3: time_per_epoch must be a number"),
        ("power_limit,time_per_epoch,average_power\n300,1\n", "line 2: average_power must be a number"),
        ("power_limit,time_per_epoch,average_power\n300,inf,2\n", "line 2: time_per_epoch"),
        ("power_limit,time_per_epoch,average_power\n300,-1,2\n", "line 2: time_per_epoch"),
    ],
)
def test_what_is_no_curve_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "curve.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_power_curve(path)
    assert "\n" not in str(caught.value)
