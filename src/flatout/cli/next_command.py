"""Suggest the typed command as the next command, without the options that would fail the second time."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flatout.secrets import masked_command


def repeated(arguments: Sequence[str], *, without: Collection[str] = ("--html",)) -> list[str]:
    """Return `flatout` and its masked arguments without --json, --force, and the options `without`, which have values.

    A file that was just written exists now, and would be refused.
    """
    words = ["flatout"]
    is_value = False  # whether the next argument is the value of a skipped option
    for word in arguments:
        if is_value:
            is_value = False
        elif word.partition("=")[0] in without:
            is_value = "=" not in word
        elif word not in ("--json", "--force"):
            words.append(word)
    return list(masked_command(words))


def has_option(arguments: Sequence[str], option: str) -> bool:
    """Return whether the option is there, as `--option VALUE` or `--option=VALUE`."""
    return any(word.partition("=")[0] == option for word in arguments)
