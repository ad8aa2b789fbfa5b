"""One rule for durations and one for numbers, held against every option of every command."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.commands import commands

from flatout.cli.durations import METAVAR, Duration, parse_duration
from flatout.cli.values import InvalidValue

# A number alone counted other units here, or counts them in Slurm's option of the same name.
NEED_A_UNIT = {
    "flatout submit --time": "m",
    "flatout schedule slurm --idle-after": "m",
    "flatout schedule replay --repair": "h",
    "flatout schedule replay --starved-after": "d",
    "flatout plan serve --itl": "ms",
    "flatout plan serve --ttft": "ms",
}
OPTIONS = {
    f"{name} {parameter.opts[0]}": parameter
    for name, command in commands().items()
    for parameter in command.params
    if parameter.opts[0].startswith("--")
}
DURATIONS = {name: option for name, option in OPTIONS.items() if METAVAR in str(option.metavar)}
NUMBERS = {name: option for name, option in OPTIONS.items() if option.type.name == "parsed"} | DURATIONS


def value_of(option: Any, text: str) -> Any:
    return option.type.convert(text, option, None)


def refused(option: Any, text: str) -> str:
    with pytest.raises(InvalidValue) as error:
        value_of(option, text)
    return str(error.value.message)


def seconds_of(option: Any, text: str) -> float:
    value = value_of(option, text)
    found = value if isinstance(value, Duration) else value.limit  # of --hang-after
    assert isinstance(found, Duration)
    return found.seconds


def test_every_option_that_takes_a_time_is_known() -> None:
    assert sorted(DURATIONS) == sorted(
        [
            "flatout bench --time",
            "flatout compare --budget",
            "flatout compress --budget",
            "flatout cost carbon --takes",
            "flatout cost carbon --within",
            "flatout cost jobs --budget-period",
            "flatout cost jobs --checkpoint-interval",
            "flatout cost spot --checkpoint-cost",
            "flatout cost spot --checkpoint-interval",
            "flatout cost spot --deadline",
            "flatout cost spot --restart",
            "flatout diagnose --untraced-step",
            "flatout plan serve --itl",
            "flatout plan serve --ttft",
            "flatout run --hang-after",
            "flatout schedule replay --checkpoint",
            "flatout schedule replay --repair",
            "flatout schedule replay --restart",
            "flatout schedule replay --starved-after",
            "flatout schedule slurm --idle-after",
            "flatout schedule slurm --interval",
            "flatout schedule slurm --timeout",
            "flatout schedule undo --timeout",
            "flatout submit --deadline",
            "flatout submit --time",
            "flatout top --every",
            "flatout tune --budget",
            "flatout tune --serve --budget",
            "flatout tune --serve --start-limit",
            "flatout tune jax --budget",
            "flatout tune nccl --budget",
            "flatout tune nccl --time",
            "flatout watch --every",
            "flatout watch node --checkpoint-every",
            "flatout watch node --repair",
            "flatout watch node --restart",
        ]
    )


@pytest.mark.parametrize(("text", "expected_s"), [("90s", 90), ("10m", 600), ("10 min", 600), (".5h", 1800)])
def test_units_mean_the_same_in_every_option(text: str, expected_s: float) -> None:
    assert {name: seconds_of(option, text) for name, option in DURATIONS.items()} == dict.fromkeys(
        DURATIONS, expected_s
    )


def test_a_number_alone_is_seconds_or_refused_with_what_to_write() -> None:
    for name, option in DURATIONS.items():
        unit = NEED_A_UNIT.get(name)
        assert ("The unit is required." in option.help) == (unit is not None)
        if unit is None:
            assert seconds_of(option, "60") == 60
        else:
            said = refused(option, "60")
            assert said.startswith(f"must have a unit, but is `60`: write 60{unit} for ")
            assert said.endswith(" or 60s for seconds")


@pytest.mark.parametrize(
    "text", ["", " ", "abc", "nan", "inf", "-5m", "5x", "5 m m", "1e400s", "1e300d", "s", "1,5m", "\u0663m", "\udcff"]
)
def test_what_is_no_duration_is_refused_with_the_rule_and_the_value(text: str) -> None:
    for option in DURATIONS.values():
        said = refused(option, text)
        assert "a duration " in said and "\n" not in said
        assert said.endswith(f"e.g. 90s, 10m or 36h, but is `{text}`")


def test_a_default_is_what_its_text_says() -> None:
    defaults = {name: option.default for name, option in DURATIONS.items() if isinstance(option.default, Duration)}
    assert len(defaults) > 8
    for name, default in defaults.items():
        assert seconds_of(DURATIONS[name], default.text) == default.seconds


@given(st.integers(1, 86_400), st.sampled_from(["", "s", "m", "h", "d"]))
def test_a_duration_is_its_number_in_its_unit(number: int, unit: str) -> None:
    expected_s = number * {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}[unit]
    if expected_s <= 864_000_000:
        assert parse_duration(f"{number}{unit}").seconds == expected_s
    else:
        with pytest.raises(InvalidValue):
            parse_duration(f"{number}{unit}")


@pytest.mark.parametrize(
    ("limits", "text", "rule"),
    [
        ({"least_s": 10, "most_s": 86_400}, "9s", "from 10s to 1d"),
        ({"least_s": 10, "most_s": 86_400}, "25h", "from 10s to 1d"),
        ({"most_s": 864_000}, "0", "above 0s and at most 10d"),
        ({"least_s": 60}, "59.9", "from 1m to 10000d"),
    ],
)
def test_the_rule_names_both_ends(limits: dict[str, float], text: str, rule: str) -> None:
    with pytest.raises(InvalidValue, match=f"must be a duration {rule}, e.g. .* but is `{text}`"):
        parse_duration(text, **limits)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["x", "", "nan", "-1e30", "1e30d", "\udcff"])
def test_a_number_that_is_none_is_refused_without_a_type_of_the_parser(text: str) -> None:
    for option in NUMBERS.values():
        said = refused(option, text)
        assert said.startswith("must ") and said.endswith(f"but is `{text}`")
        assert "range" not in said and "<" not in said


def test_no_option_is_left_to_the_numbers_of_the_parser() -> None:
    kinds = {name: type(option.type).__name__ for name, option in OPTIONS.items()}
    assert {name: kind for name, kind in kinds.items() if "Int" in kind or "Float" in kind} == {}
    assert len(NUMBERS) > 40


@pytest.mark.parametrize("text", ["0.5", "0.5%", " 0.5 %"])
def test_an_option_in_per_cent_takes_the_sign(text: str) -> None:
    assert value_of(OPTIONS["flatout plan --risk"], text) == 0.5


@pytest.mark.parametrize("text", ["%", "0%", "101%", "5%%", "5 h"])
def test_a_risk_that_is_no_percentage_is_refused(text: str) -> None:
    assert refused(OPTIONS["flatout plan --risk"], text) == f"must be a number above 0 and at most 100, but is `{text}`"
