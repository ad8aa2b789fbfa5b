"""The rule for durations in options: a number and a unit, such as 90s, 10m, 36h or 2d; a number alone is in seconds.

`duration(...)` declares such an option, and `Duration` is its value. A few options used to be in minutes, hours or
days, or have the name of a Slurm option that is in minutes. These refuse a number without a unit, so that no script
silently changes its meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import typer

from flatout.cli.values import InvalidValue

METAVAR = "DURATION"
HELP = "A DURATION is a number and a unit (ms, s, m, h or d), e.g. 90s, 10m or 36h; a number alone is seconds."
LONGEST_S = 10_000 * 86_400.0

_TEXT = re.compile(r"((?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([a-z]*)")
_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
_NAMES = {"ms": "milliseconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in seconds, and its original text."""

    text: str
    seconds: float

    def __str__(self) -> str:
        return self.text


def duration(
    *names: str,
    help: str,
    least_s: float = 0.0,
    most_s: float = LONGEST_S,
    allows_zero: bool = False,
    instead_of: str | None = None,
    show_default: bool | str = True,
) -> Any:
    """Declare an option that is a duration from `least_s` to `most_s`.

    `instead_of` is another unit that a number alone could be taken to have; such a number is refused.
    """

    def parsed(value: str | Duration) -> Duration:
        if isinstance(value, Duration):  # the option's default
            return value
        return parse_duration(value, least_s=least_s, most_s=most_s, allows_zero=allows_zero, instead_of=instead_of)

    if instead_of is not None:
        help = f"{help} The unit is required."
    return typer.Option(*names, metavar=METAVAR, parser=parsed, help=help, show_default=show_default)


def parse_duration(
    text: str,
    *,
    least_s: float = 0.0,
    most_s: float = LONGEST_S,
    allows_zero: bool = False,
    instead_of: str | None = None,
) -> Duration:
    """Parse a duration. Raises InvalidValue, whose message continues the option's name."""
    invalid = InvalidValue(f"must be a duration {_range(least_s, most_s, allows_zero)}, but is `{text}`")
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        raise invalid
    number, unit = match[1], match[2]
    if unit and unit not in _UNITS_S:
        raise invalid
    value_s = float(number) * _UNITS_S[unit or "s"]
    if not unit and value_s and instead_of is not None:
        meant = f"{number}{instead_of} for {_NAMES[instead_of]} or {number}s for seconds"
        raise InvalidValue(f"must have a unit, but is `{text}`: write {meant}")
    is_forbidden_zero = not value_s and not allows_zero
    if is_forbidden_zero or not least_s <= value_s <= most_s:
        raise invalid
    return Duration(text.strip(), value_s)


def _range(least_s: float, most_s: float, allows_zero: bool) -> str:
    if least_s or allows_zero:
        ends = f"from {_short(least_s)} to {_short(most_s)}"
    else:
        ends = f"above 0s and at most {_short(most_s)}"
    return f"{ends}, e.g. 90s, 10m or 36h"


def _short(value_s: float) -> str:
    """Write a duration with the largest unit that divides it: `30d`, `10s`."""
    for unit in ("d", "h", "m"):
        whole, rest = divmod(value_s, _UNITS_S[unit])
        if whole and not rest:
            return f"{whole:.0f}{unit}"
    return f"{value_s:g}s"
