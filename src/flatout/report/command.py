"""A command line as it may be shown and stored: values of arguments that look like secrets are masked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

MASK = "***"

_SECRET_WORDS = {"secret", "secrets", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "apikey"}
_SECRET_BEFORE_KEY = {"api", "access", "private", "secret", "account", "auth", "wandb", "signing", "encryption", "ssh"}
_TOKENS_OF_TEXT = {"eos", "bos", "pad", "mask", "unk", "sep", "cls", "stop", "special", "start", "end", "image", "per"}
_KNOWN_SECRETS = re.compile(
    r"\b(hf_\w{10,}|sk-[\w-]{10,}|gh[pousr]_\w{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}|xox[abprs]-[\w-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)"
)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+\S+")
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
        if assignment and _names_a_secret(assignment[2]):
            masked.append(f"{assignment[1] or ''}{assignment[2]}={MASK}")
            is_value_secret = False
            continue
        is_value_secret = argument.startswith("-") and not assignment and _names_a_secret(argument.lstrip("-"))
        argument = _KNOWN_SECRETS.sub(MASK, argument)
        argument = _URL_PASSWORD.sub(rf"\1{MASK}@", argument)
        masked.append(_BEARER.sub(rf"\1 {MASK}", argument))
    return tuple(masked)


def command_line(command: Sequence[str]) -> str:
    """The command as a shell takes it, secrets masked."""
    return " ".join(map(quoted, masked_command(command)))


def quoted(word: str) -> str:
    """A word of a masked command as a shell takes it."""
    return shlex.quote(word).replace(f"'{MASK}'", MASK)


def _names_a_secret(name: str) -> bool:
    words = [word for word in re.split(r"[-_.]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()) if word]
    if _SECRET_WORDS.intersection(words):
        return True
    before = words[-2] if len(words) > 1 else ""
    if words and words[-1] == "token":
        return before not in _TOKENS_OF_TEXT
    return bool(words) and words[-1] in ("key", "keys") and before in _SECRET_BEFORE_KEY
