"""Mask the secrets in a command line before it is shown or stored."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from flatout.secrets import BEARER, KNOWN_SECRETS, MASK, URL_PASSWORD, names_a_secret

_ASSIGNMENT = re.compile(r"(?s)(--?)?([A-Za-z_][\w.-]*)=(.*)")


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """Mask known secrets, and values that follow a secret's name (`--api-key X`, `HF_TOKEN=X`)."""
    masked: list[str] = []
    is_value_secret = False
    for argument in command:
        argument = argument.encode("utf-8", "backslashreplace").decode()  # a file name need not be UTF-8
        if is_value_secret and not argument.startswith("--"):
            masked.append(MASK)
            is_value_secret = False
            continue
        assignment = _ASSIGNMENT.fullmatch(argument)
        if assignment and names_a_secret(assignment[2]):
            masked.append(f"{assignment[1] or ''}{assignment[2]}={MASK}")
            is_value_secret = False
            continue
        is_value_secret = argument.startswith("-") and not assignment and names_a_secret(argument.lstrip("-"))
        argument = KNOWN_SECRETS.sub(MASK, argument)
        argument = URL_PASSWORD.sub(rf"\1{MASK}@", argument)
        masked.append(BEARER.sub(rf"\1 {MASK}", argument))
    return tuple(masked)


def command_line(command: Sequence[str]) -> str:
    """Return the command in shell syntax, with secrets masked."""
    return " ".join(map(quoted, masked_command(command)))


def quoted(word: str) -> str:
    """Return one argument of a masked command in shell syntax."""
    return shlex.quote(word).replace(f"'{MASK}'", MASK)
