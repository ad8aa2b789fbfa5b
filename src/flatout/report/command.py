"""A command line as it may be shown and stored: values of arguments that look like secrets are masked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from flatout.secrets import BEARER, KNOWN_SECRETS, MASK, URL_PASSWORD, names_a_secret

_ASSIGNMENT = re.compile(r"(?s)(--?)?([A-Za-z_][\w.-]*)=(.*)")


def masked_command(command: Sequence[str]) -> tuple[str, ...]:
    """The arguments; what follows a secret's name (`--api-key X`, `HF_TOKEN=X`) and known secrets are masked."""
    masked: list[str] = []
    is_value_secret = False
    for argument in command:
        argument = argument.encode("utf-8", "backslashreplace").decode()  # a file name may be no UTF-8
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
    """The command as a shell takes it, secrets masked."""
    return " ".join(map(quoted, masked_command(command)))


def quoted(word: str) -> str:
    """A word of a masked command as a shell takes it."""
    return shlex.quote(word).replace(f"'{MASK}'", MASK)
