"""Words that a change adds to a launcher, put into the command; `arguments` does the same for the script's own."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Launchers and the words that call them; what a change adds for one follows these words.
LAUNCHERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torchrun": (("torchrun",), ("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")),
    "srun": (("srun",),),
}


# Launchers that take an argument from the environment, too, where the command has it not: `--rdzv-id` as PET_RDZV_ID
# (torch/distributed/argparse_util.py).
_VARIABLES = {"torchrun": "PET_"}
_SWITCHES = {"--standalone"}  # arguments of launchers without a value that may be exchanged


def calls(command: Sequence[str], launcher: str) -> bool:
    return _place(command, launcher) is not None


def with_launch_words(
    command: Sequence[str], launcher: str, added: Sequence[str], *, dropped: Collection[str] = ()
) -> tuple[str, ...]:
    """`command` with `added` right behind the launcher, in place of the same arguments of its own, and of `dropped`.

    A command that does not call the launcher stays as it is: ask `calls` first.
    """
    place = _place(command, launcher)
    if place is None:
        return tuple(command)
    end = _end(command, place)
    flags = {_flag(word) for word in added if word.startswith("-")} | set(dropped)
    kept: list[str] = []
    spot = place
    while spot < end:  # of two values a launcher takes the last: the user's own would win
        if _flag(command[spot]) in flags:
            spot += 1 if "=" in command[spot] or command[spot] in _SWITCHES else 2
        else:
            kept.append(command[spot])
            spot += 1
    return (*command[:place], *added, *kept, *command[max(spot, end) :])


def launch_word(command: Sequence[str], launcher: str, flag: str) -> str | None:
    """The value that the launcher's own argument has in the command: of two, the last."""
    place = _place(command, launcher)
    if place is None:
        return None
    found = None
    for spot in range(place, _end(command, place)):
        if _flag(command[spot]) == flag:
            found = command[spot].partition("=")[2] or next(iter(command[spot + 1 : spot + 2]), None)
    return found


def launch_value(
    command: Sequence[str], launcher: str, flag: str, environment: Mapping[str, str] = os.environ
) -> str | None:
    """The same, or where the command has none, that of the variable which the launcher reads then."""
    if not calls(command, launcher):
        return None
    found = environment.get(variable_of(launcher, flag)) if launcher in _VARIABLES else None
    return launch_word(command, launcher, flag) or found or None


def variable_of(launcher: str, flag: str) -> str:
    return _VARIABLES[launcher] + flag.removeprefix("--").replace("-", "_").upper()


def started_by(command: Sequence[str], launcher: str) -> tuple[str, ...]:
    """The program that the launcher at the head of the command starts; without one, the command."""
    place = _place(command[:1], launcher)
    end = _end(command, place) if place is not None else 0
    return tuple(command[end:]) if end < len(command) else tuple(command)


def _end(command: Sequence[str], place: int) -> int:
    """Where the launcher's own arguments, which begin at `place`, end."""
    return next((spot for spot in range(place, len(command)) if _begins_a_program(command[spot])), len(command))


def _place(words: Sequence[str], launcher: str) -> int | None:
    """Where the launcher's own arguments begin."""
    for call in LAUNCHERS.get(launcher, ()):
        for start in range(len(words) - len(call) + 1):
            head = (Path(words[start]).name, *words[start + 1 : start + len(call)])
            if head == call:
                return start + len(call)
    return None


def _begins_a_program(word: str) -> bool:
    """Whether a launcher's own arguments end before this word: what follows is of the program that it starts."""
    return word.endswith(".py") or word in ("-m", "--module") or Path(word).name.startswith(("python", "torchrun"))


def _flag(word: str) -> str:
    """`--numa-binding` of `--numa_binding=node`: launchers take both spellings."""
    return word.partition("=")[0].replace("_", "-")
