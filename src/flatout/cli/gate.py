"""The gate of a command: its options, and the exit code for its outcome. The stages decide the outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from flatout.cli.values import InvalidValue, amount

if TYPE_CHECKING:
    from flatout.records.comparison import GateOutcome

FAIL, PASS = "fail", "pass"
PASSED_CODE, FAILED_CODE, UNDECIDED_CODE = 0, 1, 3


def gate_option(help: str) -> Any:
    """Declare `--gate PERCENT`; `help` says what fails it."""
    return amount(metavar="PERCENT", most=1000.0, unit="%", help=f"Exit with code 1 if {help}.")


def undecided_option(help: str) -> Any:
    """Declare `--undecided fail|pass`; `help` says when the gate is undecided."""
    return typer.Option(
        metavar=f"{FAIL}|{PASS}", parser=_outcome, help=f"With --gate: exit with code 3 or 0 if {help}."
    )


def _outcome(text: str) -> str:
    if text not in (FAIL, PASS):
        raise InvalidValue(f"must be {FAIL} or {PASS}, but is `{text}`")
    return text


def gate_code(outcome: GateOutcome | None, undecided: str) -> int:
    """Return the exit code; without a gate, it is that of a gate that passed."""
    if outcome is None or outcome == "passed":
        return PASSED_CODE
    if outcome == "failed":
        return FAILED_CODE
    return PASSED_CODE if undecided == PASS else UNDECIDED_CODE
