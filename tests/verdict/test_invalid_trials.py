"""Trials that something other than the change has spoiled do not count."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.verdict.trials import trial

from flatout.records.machine import Xid
from flatout.records.trial import BASELINE, Covariates, TrialResult
from flatout.verdict.invalid_trials import invalid_reasons, load_shifts


def with_covariates(*readings: dict[str, Any], arm: str = BASELINE) -> list[TrialResult]:
    return [trial(place, arm, covariates=Covariates(**reading)) for place, reading in enumerate(readings)]


def invalid(trials: list[TrialResult]) -> list[int]:
    return [place for place, reason in enumerate(invalid_reasons(trials)) if reason is not None]


def test_a_trial_without_readings_counts() -> None:
    assert invalid_reasons(with_covariates({}, {}, {})) == [None, None, None]
    assert invalid_reasons([]) == []


@pytest.mark.parametrize("fault", ["hardware_slowdown", "hardware_thermal", "power_brake"])
def test_a_throttled_gpu_makes_a_trial_invalid_above_five_percent_of_its_time(fault: str) -> None:
    trials = with_covariates({"throttle_share": {fault: 0.05}}, {"throttle_share": {fault: 0.051}}, {})
    assert invalid(trials) == [1]
    reason = invalid_reasons(trials)[1]
    assert reason == f"the GPU was throttled ({fault.replace('_', ' ')}) in trial 1 of baseline"


def test_a_gpu_error_that_the_job_did_not_cause_makes_a_trial_invalid() -> None:
    broken = {"xids": (Xid(number=79, gpu=3, address="0000:01:00"), Xid(number=48, gpu=1, address="0000:02:00"))}
    own = {"xids": (Xid(number=31, gpu=0, address="0000:00:00"),)}
    reasons = invalid_reasons(with_covariates({}, own, broken))
    assert reasons[:2] == [None, None]
    assert reasons[2] is not None
    assert reasons[2].startswith("Xid 79 on GPU 3 in trial 2: ")
    assert reasons[2].endswith("(and 1 more)")


@pytest.mark.parametrize("number", [13, 31, 43, 45])
def test_an_error_that_the_job_causes_itself_is_not_the_machine_s(number: int) -> None:
    """NVIDIA's documentation of Xids: a job causes them on a healthy GPU, or a process that was ended leaves them."""
    own = {"xids": (Xid(number=number, gpu=0, address="0000:00:00"),)}
    assert invalid(with_covariates({}, own, {})) == []


def loads(cores: float | None, *busy: float) -> list[TrialResult]:
    return with_covariates(*({"cores_busy_by_others": load, "cores_allowed": cores} for load in busy))


@pytest.mark.parametrize(("cores", "gross"), [(2.0, 1.0), (32.0, 16.0), (None, 2.0)])
def test_a_load_that_differs_by_half_of_the_cores_makes_a_trial_invalid(cores: float | None, gross: float) -> None:
    assert invalid(loads(cores, 0.2, 0.2, 0.19 + gross, 0.2)) == []
    assert invalid(loads(cores, 0.2, 0.2, 0.21 + gross, 0.2)) == [2]
    assert invalid(loads(cores, 6 + gross, 6 + gross, 6 + gross, 5.9)) == [3]
    assert invalid(loads(cores, 6.0, 6.0, 6.0, 6.0)) == []


@pytest.mark.parametrize(
    ("cores", "tolerated"),
    [(2.0, 0.5), (4.0, 1.0), (8.0, 1.0), (32.0, 3.2), (None, 1.0)],
)
def test_a_smaller_load_that_is_unusual_may_have_moved_the_cost(cores: float | None, tolerated: float) -> None:
    assert load_shifts(loads(cores, 0.2, 0.2, 0.19 + tolerated, 0.2)) == (0, 0, 0, 0)
    shift = math.log1p((0.01 + tolerated) / (cores or 4.0))
    assert load_shifts(loads(cores, 0.2, 0.2, 0.21 + tolerated, 0.2)) == pytest.approx((0, 0, shift, 0))
    busy = 6.0 + tolerated
    assert load_shifts(loads(cores, busy, busy, busy, 5.99)) == pytest.approx((0, 0, 0, -shift))
    assert load_shifts(with_covariates({}, {})) == (0, 0)


@pytest.mark.parametrize(
    ("readings", "name"),
    [
        (lambda x: {"sm_clock_hz": 1.98e9 * (1 - 0.0295 * x)}, "SM clocks"),
        (lambda x: {"throttle_share": {"software_thermal": 0.1 + 0.2 * x}}, "thermal throttling"),
        (lambda x: {"quota_throttled_s_per_s": 0.1 + 0.2 * x}, "throttling by the CPU quota"),
    ],
)
def test_clocks_and_throttling_are_compared_with_the_arm_s_other_trials(readings: Any, name: str) -> None:
    inside, outside = readings(0.99), readings(1.01)
    usual = readings(0.0)
    assert invalid(with_covariates(usual, usual, usual, inside)) == []
    reasons = invalid_reasons(with_covariates(usual, usual, usual, outside))
    assert reasons == [None, None, None, f"trial 3 differed in {name} from the others of baseline"]
    # Two others do not show what is usual.
    assert invalid(with_covariates(usual, usual, outside)) == []


def test_a_change_that_lowers_the_clocks_makes_no_trial_invalid() -> None:
    baselines = with_covariates(*[{"sm_clock_hz": 1.98e9}] * 5)
    candidates = with_covariates(*[{"sm_clock_hz": 1.5e9}] * 5, arm="candidate")
    assert invalid([*baselines, *candidates]) == []
