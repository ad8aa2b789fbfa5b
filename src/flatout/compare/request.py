"""Read the arguments of `flatout compare`: two commands, or one command under two commits or environments, or two
recordings.

In: what the user typed. Out: the requests of both arms, or the paths of two recordings. Raises UsageError.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.compare.arms import ArmRequest, arm_request
from flatout.errors import UsageError

_HINT = "--a 'CMD' --b 'CMD', or --a-ref main --b-ref HEAD -- CMD"


def recordings_of(words: Sequence[str], options: Sequence[object]) -> tuple[Path, Path] | None:
    """Return the two recordings or traces to compare, if no option gives a command, a commit or an environment."""
    if any(option is not None for option in options):
        return None
    if not words:
        raise UsageError("two commands or two recordings are needed", hint=_HINT)
    if len(words) == 2 and all(Path(word).exists() for word in words):
        return Path(words[0]), Path(words[1])
    if len(words) == 2 and not any(word.startswith("-") for word in words):
        missing = next(word for word in words if not Path(word).exists())
        raise UsageError(f"two recordings or two commands are needed, but there is no {missing}", hint=_HINT)
    raise UsageError("one command alone cannot be compared", hint=_HINT)


def compare_arms(
    words: Sequence[str],
    *,
    commands: tuple[str | None, str | None],
    refs: tuple[str | None, str | None],
    pythons: tuple[Path | None, Path | None],
) -> tuple[ArmRequest, ArmRequest]:
    """Return what A and B are to run. An arm without its own command runs the one after `--`."""
    if words and all(command is not None for command in commands):
        raise UsageError("`--a` and `--b` are the commands, so there must be none after `--`", hint=_HINT)
    missing = next((option for option, text in zip(("--a", "--b"), commands, strict=True) if text is None), None)
    if not words and missing is not None:
        raise UsageError(f"`{missing}` is missing, and there is no command after `--`", hint=_HINT)
    return (
        arm_request("A", commands[0], words, ref=refs[0], python=pythons[0]),
        arm_request("B", commands[1], words, ref=refs[1], python=pythons[1]),
    )
