"""Read and change the options of a server's command: `--name value`, `--name=value` and flags.

In: the words of a command. Out: the words with changes. Only words after the program are options; a value that begins
with a dash must be given as `--name=value`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

import msgspec

from flatout.errors import UsageError
from flatout.records.serving import ServerChange

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_SHELL = ("|", "||", "&&", "&", ";", ">", ">>", "<", "2>&1")
PORT = "{port}"


class ServerCommand(msgspec.Struct, frozen=True, kw_only=True):
    """A server's command, and the variables that stand before it."""

    words: tuple[str, ...]
    environment: dict[str, str] = {}


def parse_command(text: str) -> ServerCommand:
    """Return the words of a command as a shell reads them. Raise UsageError if it needs a shell."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"`--serve` cannot be parsed as a command: {error}") from error
    environment: dict[str, str] = {}
    while words and _ASSIGNMENT.fullmatch(words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    if not words:
        raise UsageError("`--serve` must be the server's command, such as 'vllm serve MODEL'")
    for word in words:
        if word in _SHELL:
            raise UsageError(
                f"`--serve` must be one command without a shell's operators, but got {word}",
                hint="put a longer command into a script, which ends in `exec SERVER`",
            )
    return ServerCommand(words=tuple(words), environment=environment)


def option_value(words: Sequence[str], option: str) -> str | None:
    """Return the value of an option, an empty text for a flag; None if the command does not have it."""
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
        if word == option:
            following = words[place + 1] if place + 1 < len(words) else ""
            return "" if following.startswith("-") else following
    return None


def has_option(words: Sequence[str], option: str) -> bool:
    return any(word == option or word.startswith(f"{option}=") for word in words)


def with_option(words: Sequence[str], option: str, value: str | None) -> tuple[str, ...]:
    """Return the words with the option set; None for a flag."""
    own = (option,) if value is None else (option, value)
    if value is not None and value.startswith("-"):
        own = (f"{option}={value}",)
    for place, word in enumerate(words):
        if word.startswith(f"{option}="):
            return (*words[:place], *own, *words[place + 1 :])
        if word == option:
            had_value = value is not None and place + 1 < len(words) and not words[place + 1].startswith("-")
            return (*words[:place], *own, *words[place + 1 + had_value :])
    return (*words, *own)


def without_flag(words: Sequence[str], option: str) -> tuple[str, ...]:
    return tuple(word for word in words if word != option and not word.startswith(f"{option}="))


def changed(command: ServerCommand, changes: Sequence[ServerChange]) -> ServerCommand:
    """Return the command with the changes, each applied after the other."""
    words = command.words
    environment = dict(command.environment)
    for change in changes:
        for option in change.removed:
            words = without_flag(words, option)
        for option, value in change.options.items():
            words = with_option(words, option, value)
        environment |= change.environment
    return ServerCommand(words=words, environment=environment)


def launch_line(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the line that starts the server in a shell."""
    assignments = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    return " ".join([*assignments, shlex.join(words)])
