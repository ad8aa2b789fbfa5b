"""The option `--fail-on`, with the words of each command, and its exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

from flatout.conditions.words import Condition, help_of, parse_conditions


def fail_on_option(command: str) -> Any:
    """Declare the option for a command."""
    return typer.Option(metavar="CONDITION", help=help_of(command))


def exit_if_met(met: Sequence[str]) -> None:
    """Print which conditions are met, and exit with code 1 if any is."""
    for sentence in met:
        print(f"--fail-on: {sentence}", file=sys.stderr)
    if met:
        raise typer.Exit(1)


def finding_conditions(command: str, texts: Sequence[str]) -> tuple[Condition, ...]:
    """Parse conditions on findings, which are loaded only if there are any."""
    if not texts:
        return ()
    from flatout.diagnose.rules import RULES

    return parse_conditions(command, texts, [rule.NAME for rule in RULES])
