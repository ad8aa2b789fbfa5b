"""Bus bandwidth against nccl-tests' own formulas, typed by hand; fits against curves that were made from a line."""

from __future__ import annotations

import random

import pytest

from flatout.probe.ceilings.bus import COLLECTIVES, bus_factor
from flatout.probe.ceilings.collectives import shapes, sizes
from flatout.probe.ceilings.fit import fitted


# nccl-tests, doc/PERFORMANCE.md: all-reduce 2 (n-1)/n; reduce-scatter, all-gather, all-to-all (n-1)/n; the rest 1.
@pytest.mark.parametrize(
    ("collective", "of_2", "of_4", "of_8"),
    [
        ("all_reduce", 1.0, 1.5, 1.75),
        ("reduce_scatter", 0.5, 0.75, 0.875),
        ("all_gather", 0.5, 0.75, 0.875),
        ("all_to_all", 0.5, 0.75, 0.875),
        ("broadcast", 1.0, 1.0, 1.0),
        ("send_recv", 1.0, 1.0, 1.0),
    ],
)
def test_factors_are_those_of_nccl_tests(collective: str, of_2: float, of_4: float, of_8: float) -> None:
    assert [bus_factor(collective, n) for n in (2, 4, 8)] == [of_2, of_4, of_8]


def test_every_collective_has_a_factor_and_no_other_word_has() -> None:
    assert all(bus_factor(name, 3) > 0 for name in COLLECTIVES)
    with pytest.raises(ValueError, match="no collective"):
        bus_factor("gather", 2)


def test_a_line_is_found_again_under_noise_and_an_odd_size() -> None:
    latency, bandwidth = 12e-6, 360e9
    source = random.Random(3)
    work = [float(1 << shift) for shift in range(10, 31)]
    took = [(latency + one / bandwidth) * source.lognormvariate(0, 0.03) for one in work]
    took[12] *= 8  # a size at which something else ran
    found = fitted(work, took)
    assert found is not None
    assert found[0] == pytest.approx(latency, rel=0.1)
    assert found[1] == pytest.approx(bandwidth, rel=0.1)
    assert found[2] < 0.06


def test_few_sizes_have_no_fit() -> None:
    assert fitted([1e3, 1e4, 1e5], [1e-5, 2e-5, 1e-4]) is None


def test_sizes_go_from_a_kilobyte_to_the_limit() -> None:
    assert sizes(1 << 30, step=1)[:2] == [1024, 2048]
    assert sizes(1 << 30, step=1)[-1] == 1 << 30
    assert sizes((1 << 20) + 5, step=2) == [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20]


def test_groups_of_two_hosts_and_of_one() -> None:
    assert shapes(4, [0, 0, 1, 1]) == {
        "all": [(0, 1, 2, 3)],
        "pairs": [(0, 1), (2, 3)],  # the ranks of each host are these again
        "across": [(0, 2), (1, 3)],
    }
    # Places on the second host in another order: groups number their ranks upwards all the same.
    assert shapes(6, [0, 0, 1, 1, 1, 0])["across"] == [(0, 2), (1, 3), (4, 5)]
    assert shapes(8, [0] * 4 + [1] * 4)["node"] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert shapes(3, [0, 0, 0]) == {"all": [(0, 1, 2)], "pairs": [(0, 1)]}
    assert shapes(2, [0, 0]) == {"all": [(0, 1)]}
    assert shapes(1, [0]) == {}
