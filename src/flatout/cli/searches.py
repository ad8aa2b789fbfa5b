"""What `compress`, `tune` and `tune --serve` share: the options that limit a search, and how it ends."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from flatout.cli.durations import duration
from flatout.cli.values import whole_number

if TYPE_CHECKING:
    from flatout.records.change import Safety

_MOST_S = 30 * 86_400.0
_LEAST_TRIALS = 4


def out_option(content: str, verb: str) -> Any:
    """Declare --out, by what it will hold and the name of the folder that it is by default."""
    return typer.Option(metavar="DIR", help=f"Folder for {content}. [default: flatout-out/{verb}-TIME]")


def budget_option(what: str) -> Any:
    return duration(least_s=1.0, most_s=_MOST_S, help=f"Time limit{what}.")


def trials_option(what: str) -> Any:
    return whole_number(least=_LEAST_TRIALS, help=f"Maximum number of {what}, at least {_LEAST_TRIALS}.")


def allow_option() -> Any:
    return typer.Option(metavar="SAFETY", help="Least strict class of changes to try: exact, rounding or semantic.")


def json_option() -> Any:
    return typer.Option("--json", help="Print the result as JSON.")


def parsed_safety(text: str) -> Safety:
    """Return the class of changes. Raises UsageError if there is no such class."""
    from flatout.errors import UsageError
    from flatout.records.change import SAFETIES

    for safety in SAFETIES:
        if text == safety:
            return safety
    raise UsageError(f"`--allow` must be one of {', '.join(SAFETIES)}, but got {text}")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Exit with the code of the signal that ended the search."""
    from flatout.tune.signals import EndedBySignal

    try:
        yield
    except EndedBySignal as signal:
        raise typer.Exit(128 + signal.number) from signal


def say(line: str) -> None:
    """Print a line of progress."""
    print(f"flatout: {line}", file=sys.stderr, flush=True)
