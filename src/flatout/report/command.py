"""Show a command in shell syntax, with its secrets masked."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from flatout.secrets import MASK, masked_command


def command_line(command: Sequence[str]) -> str:
    """Return the command in shell syntax, with secrets masked."""
    return " ".join(map(quoted, masked_command(command)))


def quoted(word: str) -> str:
    """Return one argument of a masked command in shell syntax."""
    return shlex.quote(word).replace(f"'{MASK}'", MASK)
