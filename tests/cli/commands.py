"""All commands of the command line, as the parser has them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from flatout.cli import parser


def commands() -> dict[str, Any]:
    """By their whole names, `flatout` and its groups among them: `flatout schedule replay`."""
    return dict(_below("flatout", parser()))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child, one in getattr(command, "commands", {}).items():
        yield from _below(f"{name} {child}", one)


def is_group(command: Any) -> bool:
    """Whether it does nothing without a command of its own."""
    return hasattr(command, "commands") and not command.invoke_without_command
