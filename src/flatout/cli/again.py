"""The command that was typed, for the next one to type: the same, without what it would stumble over."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def again(arguments: Sequence[str], *, writes: Collection[str] = ("--html",)) -> list[str]:
    """`flatout` and its arguments without --json, --force, and the options of `writes`, each of which has a value.

    A file that was just written is there already, and would be refused.
    """
    kept, skips = [], False
    for word in arguments:
        if skips:
            skips = False
        elif word.partition("=")[0] in writes:
            skips = "=" not in word
        elif word not in ("--json", "--force"):
            kept.append(word)
    return ["flatout", *kept]


def has_option(arguments: Sequence[str], option: str) -> bool:
    """Whether it was given, as `--option VALUE` or `--option=VALUE`."""
    return any(word.partition("=")[0] == option for word in arguments)
