"""What else differs between the arms, and whether they train alike."""

from __future__ import annotations

import pytest
from tests.change.jobs import facts
from tests.trial.training import train
from tests.verdict.trials import trial

from flatout.compare.environment import environment_differences, facts_of
from flatout.compare.result import training_check
from flatout.records.comparison import EnvironmentDifference
from flatout.records.trial import Covariates, TrialResult


def differences(a: dict[str, object], b: dict[str, object]) -> list[tuple[str, str, str]]:
    found = environment_differences(facts(**a), facts(**b), [], [])
    return [(row.name, row.a, row.b) for row in found]


def test_versions_and_variables_that_differ_are_listed() -> None:
    before = {
        "torch": "2.10.0",
        "nccl": "2.27.3",
        "driver": None,
        "environment": {"NCCL_ALGO": "Ring", "OMP_NUM_THREADS": "1"},
    }
    after = {"torch": "2.11.0", "nccl": "2.27.3", "driver": "550.1", "environment": {"OMP_NUM_THREADS": "1"}}
    assert differences(before, after) == [
        ("torch", "2.10.0", "2.11.0"),
        ("GPU driver", "unknown", "550.1"),
        ("NCCL_ALGO", "Ring", "not set"),
    ]
    assert differences(before, before) == []


def test_facts_are_shown_as_words() -> None:
    rows = differences({"is_autocast": False, "cores_allowed": 8.0}, {"is_autocast": True, "cores_allowed": 16.0})
    assert rows == [("CPU cores", "8", "16"), ("autocast", "no", "yes")]


def run(index: int, **covariates: object) -> TrialResult:
    return trial(index, covariates=Covariates(**covariates))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("a", "b", "rows"),
    [
        ({"sm_clock_hz": 1.9e9}, {"sm_clock_hz": 1.88e9}, [("GPU clock", "1900 MHz", "1880 MHz")]),
        ({"sm_clock_hz": 1.9e9}, {"sm_clock_hz": 1.882e9}, []),
        ({"sm_clock_hz": None}, {"sm_clock_hz": 1.0e9}, []),
        ({"temperature_c": 60.0}, {"temperature_c": 65.0}, [("GPU temperature", "60 °C", "65 °C")]),
        ({"temperature_c": 60.0}, {"temperature_c": 64.9}, []),
        ({}, {"throttle_share": {"power": 0.5}}, [("GPU throttling", "none", "power")]),
    ],
)
def test_conditions_of_the_gpus(a: dict[str, object], b: dict[str, object], rows: list[tuple[str, str, str]]) -> None:
    found = environment_differences(None, None, [run(0, **a), run(3, **a)], [run(1, **b), run(2, **b)])
    assert found == tuple(EnvironmentDifference(name=name, a=of_a, b=of_b) for name, of_a, of_b in rows)


def test_a_recording_that_is_gone_has_no_facts(tmp_path: object) -> None:
    assert facts_of(None) is None
    assert facts_of(tmp_path / "absent") is None  # type: ignore[operator]


def trained(index: int, fault: str = "none", samples: float = 64.0) -> TrialResult:
    training = train(fault, num_steps=20, float_noise=2e-4, noise_seed=index)  # type: ignore[arg-type]
    values = {"losses": training.losses, "gradients": training.gradients, "samples_per_step": samples}
    return trial(index, **values)  # type: ignore[arg-type]


def test_arms_that_train_alike_pass_and_others_do_not() -> None:
    a = [trained(index) for index in (0, 3, 4)]
    alike = training_check(a, [trained(index) for index in (1, 2)])
    assert alike is not None and alike.is_passed
    other = training_check(a, [trained(index, "half") for index in (1, 2)])
    assert other is not None and not other.is_passed
    one_of_three = training_check(a, [trained(1), trained(2), trained(5, "half")])
    assert one_of_three is not None and one_of_three.is_passed
    assert training_check([], a) is None


def test_steps_of_other_sizes_are_not_compared() -> None:
    check = training_check([trained(0)], [trained(1, "half", samples=128.0)])
    assert check is not None and check.is_passed
    assert check.losses == "a step has 64 samples in A and 128 in B: not compared"
