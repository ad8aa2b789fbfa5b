"""Where the difference is, from parts whose differences are known."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from flatout.compare.parts import REST, cause_of, differences, work_parts
from flatout.records.comparison import CallDifference, PartDifference
from flatout.verdict.cost import TrialCost, WorkCost


def part(
    name: str, change_s: float, *, source: str = "steps", is_shown: bool = True, a_s: float = 0.1
) -> PartDifference:
    return PartDifference(
        part=name,
        source=source,  # type: ignore[arg-type]
        a_s=a_s,
        b_s=a_s + change_s,
        change_s=change_s,
        interval_s=None,
        is_shown=is_shown,
    )


def test_the_interval_is_that_of_a_t_test_with_equal_variances() -> None:
    random = np.random.default_rng(1)
    a, b = random.normal(0.1, 0.01, 5), random.normal(0.12, 0.01, 6)
    found = differences([{"data_loading": x} for x in a], [{"data_loading": x} for x in b], "steps")[0]
    expected = stats.ttest_ind(b, a).confidence_interval(0.95)
    assert found.interval_s == pytest.approx((expected.low, expected.high))
    assert found.change_s == pytest.approx(b.mean() - a.mean())


def test_a_part_is_shown_if_its_corrected_interval_excludes_0() -> None:
    """Four runs each, sd 1: the error of the difference is 0.707, and t at 2.5 % / 2 parts and 6 degrees is 2.969."""
    shape = np.array([-1.0, -0.5, 0.5, 1.0])
    shape = shape / shape.std(ddof=1)
    threshold = float(stats.t.ppf(1 - 0.05 / 2 / 2, 6)) * np.sqrt(0.5)
    for shift, is_shown in ((1.01 * threshold, True), (0.99 * threshold, False)):
        a = [{"x": 10 + value, "y": 1.0} for value in shape]
        b = [{"x": 10 + value + shift, "y": 1.0} for value in shape]
        assert {found.part: found.is_shown for found in differences(a, b, "steps")} == {"x": is_shown, "y": False}


def test_one_run_each_gives_no_interval() -> None:
    found = differences([{"compute": 0.1}], [{"compute": 0.3}], "profiles")[0]
    assert (found.interval_s, found.is_shown, found.change_s) == (None, False, pytest.approx(0.2))
    assert differences([], [{"compute": 0.1}], "profiles") == []


def test_equal_parts_without_noise_have_an_interval_of_nothing() -> None:
    found = differences([{"compute": 0.1}] * 3, [{"compute": 0.1}] * 3, "profiles")[0]
    assert found.interval_s == pytest.approx((0.0, 0.0), abs=1e-12)
    assert not found.is_shown


def test_the_cause_is_the_largest_shown_part_in_the_direction_of_the_change() -> None:
    parts = [part("data_loading", 0.03), part(REST, -0.01), part("logging", 0.001)]
    assert cause_of(parts) == "data_loading"
    assert cause_of([part("data_loading", 0.03, is_shown=False)]) is None
    assert cause_of([part("data_loading", -0.03), part(REST, 0.01)]) == "data_loading"  # B is faster


@pytest.mark.parametrize(("rest_s", "loading_s", "cause"), [(0.0081, 0.0019, REST), (0.0079, 0.0021, None)])
def test_a_part_that_explains_nearly_all_of_a_shown_difference_is_named(
    rest_s: float, loading_s: float, cause: str | None
) -> None:
    parts = [part(REST, rest_s, is_shown=False), part("data_loading", loading_s, is_shown=False)]
    assert cause_of(parts, is_total_shown=True) == cause
    assert cause_of(parts) is None


def test_the_rest_of_the_step_is_divided_by_the_profiles() -> None:
    parts = [
        part(REST, 0.02),
        part("data_loading", 0.005, source="profiles"),  # the step log measures it, and found nothing
        part("transfer", 0.004, source="profiles", is_shown=False),
        part("compute", 0.003, source="profiles"),
        part("wait", -0.03, source="profiles"),
    ]
    assert cause_of(parts) == "compute"  # a part that is shown comes before a larger one that is not
    assert cause_of(parts[:1]) == REST


def test_an_epochs_end_has_its_share_of_an_average_step() -> None:
    """A boundary of 2 s at each 40th step is 50 ms a step; work of unknown frequency has no share."""
    known = WorkCost(kinds=("loader_start", "epoch_end"), extra_s=2.0, period_steps=40.0)
    unknown = WorkCost(kinds=("checkpoint",), extra_s=3.0, period_steps=None)
    cost = TrialCost(log=0.0, num_steps=50, step_s=0.15, regular_s=0.1, work=(known, unknown))
    assert work_parts(cost) == pytest.approx({"regular_step": 0.1, "epoch_end, loader_start": 0.05})
    assert work_parts(TrialCost(log=0.0, num_steps=50, regular_s=0.1)) == {"regular_step": 0.1}


@pytest.mark.parametrize(
    ("num_calls", "is_shown", "cause"),
    [(40.0, False, "transfer"), (1.9, False, "compute"), (2.0, False, "transfer"), (40.0, True, "compute")],
)
def test_the_number_of_collectives_decides_where_the_profiles_show_nothing(
    num_calls: float, is_shown: bool, cause: str
) -> None:
    """Forty small messages in place of one take cores from the computing next to them, which then looks slower."""
    call = CallDifference(name="gloo:all_reduce", a_calls=1.0, b_calls=num_calls, a_s=0.05, b_s=0.5)
    parts = [
        part(REST, 0.06),
        part("compute", 0.1, source="profiles", is_shown=is_shown),
        part("transfer", 0.05, source="profiles", is_shown=False),
    ]
    assert cause_of(parts, [call]) == cause
    assert cause_of(parts) == "compute"
