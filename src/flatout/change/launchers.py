"""Add a change's launcher arguments to the command; `arguments` does the same for the script's own."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

# Launchers and the words that call them; what a change adds for one follows these words.
LAUNCHERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torchrun": (("torchrun",), ("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")),
    "srun": (("srun",),),
    "accelerate": (("accelerate", "launch"), ("-m", "accelerate.commands.launch")),
    "deepspeed": (("deepspeed",), ("-m", "deepspeed.launcher.runner")),
    "mpirun": (("mpirun",), ("mpiexec",)),
}


# Launchers that also take an argument from the environment if the command lacks it: `--rdzv-id` as PET_RDZV_ID
# (torch/distributed/argparse_util.py).
_VARIABLES = {"torchrun": "PET_"}
_SWITCHES = {"--standalone", "--no-ssh", "--same-network"}  # launcher arguments without a value that may be replaced


def calls(command: Sequence[str], launcher: str) -> bool:
    return _start(command, launcher) is not None


def first_launcher(command: Sequence[str]) -> str | None:
    """Return the launcher that the command calls first; None if it calls none."""
    starts = {launcher: start for launcher in LAUNCHERS if (start := _start(command, launcher)) is not None}
    return min(starts, key=starts.__getitem__, default=None)


def with_launch_words(
    command: Sequence[str], launcher: str, added: Sequence[str], *, dropped: Collection[str] = ()
) -> tuple[str, ...]:
    """Return the command with `added` right after the launcher, without its own such arguments and without `dropped`.

    A command that does not call the launcher is returned unchanged: ask `calls` first.
    """
    start = _start(command, launcher)
    if start is None:
        return tuple(command)
    end = _end(command, start)
    replaced = {_flag(word) for word in added if word.startswith("-")} | set(dropped)
    kept: list[str] = []
    position = start
    while position < end:  # a launcher takes the last of two values: the user's own value would win
        word = command[position]
        if _flag(word) not in replaced:
            kept.append(word)
            position += 1
        elif "=" in word or word in _SWITCHES:
            position += 1
        else:
            position += 2
    return (*command[:start], *added, *kept, *command[max(position, end) :])


def launch_word(command: Sequence[str], launcher: str, flag: str) -> str | None:
    """Return the value of the launcher's argument in the command, the last if it is there twice; None without one."""
    start = _start(command, launcher)
    if start is None:
        return None
    value = None
    for position in range(start, _end(command, start)):
        if _flag(command[position]) == flag:
            following = command[position + 1] if position + 1 < len(command) else None
            value = command[position].partition("=")[2] or following
    return value


def launch_value(
    command: Sequence[str], launcher: str, flag: str, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return the same, or if the command has no value, that of the variable which the launcher reads instead."""
    if not calls(command, launcher):
        return None
    variable = environment.get(variable_of(launcher, flag)) if launcher in _VARIABLES else None
    return launch_word(command, launcher, flag) or variable or None


def variable_of(launcher: str, flag: str) -> str:
    return _VARIABLES[launcher] + flag.removeprefix("--").replace("-", "_").upper()


def started_by(command: Sequence[str], launcher: str) -> tuple[str, ...]:
    """Return the program that the launcher at the head of the command starts; the command itself without a launcher."""
    start = _start(command[:1], launcher)
    end = _end(command, start) if start is not None else 0
    return tuple(command[end:]) if end < len(command) else tuple(command)


def launched_program(command: Sequence[str]) -> tuple[str, ...]:
    """Return the program that all launchers in the command start, with its arguments: the same words on each node."""
    ends = [_end(command, start) for launcher in LAUNCHERS if (start := _start(command, launcher)) is not None]
    end = max(ends, default=0)
    return tuple(command[end:]) if end < len(command) else tuple(command)


def _start(command: Sequence[str], launcher: str) -> int | None:
    """Return the position of the launcher's first own argument; None if the command does not call it."""
    scripts = (position for position, word in enumerate(command) if word.endswith(".py"))
    num_words = next(scripts, len(command))  # the words after a script are its own
    for call in LAUNCHERS.get(launcher, ()):
        for start in range(num_words - len(call) + 1):
            head = (Path(command[start]).name, *command[start + 1 : start + len(call)])
            if head == call:
                return start + len(call)
    return None


def _end(command: Sequence[str], start: int) -> int:
    """Return the position after the launcher's own arguments, which begin at `start`."""
    programs = (position for position in range(start, len(command)) if _begins_a_program(command[position]))
    return next(programs, len(command))


def _begins_a_program(word: str) -> bool:
    """Whether the word begins the program that the launcher starts, so that its own arguments end before it."""
    return word.endswith(".py") or word in ("-m", "--module") or Path(word).name.startswith(("python", "torchrun"))


def _flag(word: str) -> str:
    """Return the name of an argument: `--numa-binding` of `--numa_binding=node`, as launchers take both spellings."""
    return word.partition("=")[0].replace("_", "-")
