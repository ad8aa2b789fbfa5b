"""Options that are numbers: whole numbers and amounts, each checked against its range where it is parsed.

Typer's own ranges let `nan` pass and show their types (`<int range>`, `x>=1`) in the help and in errors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import typer

LARGEST = 1e9

Number = TypeVar("Number", int, float)


class InvalidValue(typer.BadParameter):
    """The value of an option breaks the option's rule. The message follows the option's name: "must be ..."."""


def whole_number(
    *names: str,
    help: str,
    least: int = 0,
    most: int | None = None,
    metavar: str = "N",
    show_default: bool | str = True,
) -> Any:
    """Declare an option that is a whole number from `least` to `most`."""
    rule = f"a whole number {_range(least, most)}"
    parser = _parser(int, rule, least, most)
    return typer.Option(*names, metavar=metavar, parser=parser, help=help, show_default=show_default)


def amount(
    *names: str,
    help: str,
    metavar: str,
    least: float = 0.0,
    most: float = LARGEST,
    positive: bool = False,
    unit: str = "",
    show_default: bool | str = True,
) -> Any:
    """Declare an option that is a number from `least` to `most`, or above 0 if it must be positive.

    The user may write the unit after the number: `10%` is `10`.
    """
    if positive:
        least = sys.float_info.min
        rule = f"a number above 0 and at most {most:,.12g}"
    else:
        rule = f"a number {_range(least, most)}"
    parser = _parser(float, rule, least, most, unit)
    return typer.Option(*names, metavar=metavar, parser=parser, help=help, show_default=show_default)


def _parser(
    kind: type[Number], rule: str, least: Number, most: Number | None, unit: str = ""
) -> Callable[[object], Number]:
    def parsed(value: Any) -> Number:
        text = value.strip().removesuffix(unit) if isinstance(value, str) else value
        try:
            number = kind(text)
        except (ValueError, OverflowError):
            raise InvalidValue(f"must be {rule}, but is `{value}`") from None
        is_in_range = number >= least and (most is None or number <= most)  # false for nan
        if not is_in_range:
            raise InvalidValue(f"must be {rule}, but is `{value}`")
        return number

    return parsed


def _range(least: float, most: float | None) -> str:
    if most is None:
        return f"of at least {least:,g}"
    return f"from {least:,g} to {most:,.12g}"
