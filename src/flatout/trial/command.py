"""The user's command and a set of changes -> the command and the variables of one trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.change.arguments import with_arguments
from flatout.errors import UsageError
from flatout.records.change import ChangeSet

TRIAL_DIR = "{trial_dir}"
# Launchers and the words that call them; what a change adds for one follows these words.
LAUNCHERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "torchrun": (("torchrun",), ("-m", "torch.distributed.run"), ("-m", "torch.distributed.launch")),
    "srun": (("srun",),),
    "accelerate": (("accelerate", "launch"), ("-m", "accelerate.commands.launch")),
}


class TrialCommand(msgspec.Struct, frozen=True, kw_only=True):
    words: tuple[str, ...]
    variables: dict[str, str]  # to add to the environment


def trial_command(command: Sequence[str], changes: ChangeSet, trial_dir: Path) -> TrialCommand:
    """`command` with the changes applied. `{trial_dir}` in it becomes the trial's own folder."""
    words = with_arguments(command, changes.arguments)
    for launcher, added in changes.launch.items():
        words = _launched_with(words, launcher, added)
    patches = [msgspec.to_builtins(patch) for patch in changes.patches]
    variables = dict(changes.environment)
    if patches:
        variables["FLATOUT_PATCHES"] = json.dumps(patches)
    return TrialCommand(words=tuple(word.replace(TRIAL_DIR, str(trial_dir)) for word in words), variables=variables)


def launcher_of(command: Sequence[str]) -> str | None:
    """`torchrun`, `srun` or `accelerate`, the innermost that the command names; `python` for a plain interpreter."""
    found = {name: place for name in LAUNCHERS if (place := _place(command, name)) is not None}
    if found:
        return max(found, key=lambda name: found[name])
    return "python" if command and Path(command[0]).name.startswith("python") else None


def keeps_outputs_apart(command: Sequence[str]) -> bool:
    return any(TRIAL_DIR in word for word in command)


def _launched_with(words: Sequence[str], launcher: str, added: Sequence[str]) -> tuple[str, ...]:
    place = _place(words, launcher)
    if place is None:
        raise UsageError(f"a change adds {' '.join(added)} to {launcher}, which the command does not call")
    end = next((spot for spot in range(place, len(words)) if _begins_a_program(words[spot])), len(words))
    flags = {_flag(word) for word in added if word.startswith("-")}
    kept: list[str] = []
    spot = place
    while spot < end:  # of two values a launcher takes the last: the user's own would win
        if _flag(words[spot]) in flags:
            spot += 1 if "=" in words[spot] else 2
        else:
            kept.append(words[spot])
            spot += 1
    return (*words[:place], *added, *kept, *words[max(spot, end) :])


def _begins_a_program(word: str) -> bool:
    """Whether a launcher's own arguments end before this word: what follows is of the program that it starts."""
    return word.endswith(".py") or word in ("-m", "--module") or Path(word).name.startswith(("python", "torchrun"))


def _flag(word: str) -> str:
    """`--numa-binding` of `--numa_binding=node`: launchers take both spellings."""
    return word.partition("=")[0].replace("_", "-")


def _place(words: Sequence[str], launcher: str) -> int | None:
    """Where the launcher's own arguments begin."""
    for call in LAUNCHERS.get(launcher, ()):
        for start in range(len(words) - len(call) + 1):
            head = (Path(words[start]).name, *words[start + 1 : start + len(call)])
            if head == call:
                return start + len(call)
    return None


def describe(variables: Mapping[str, str], words: Sequence[str]) -> str:
    """The command as one would type it."""
    import shlex

    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(words)])
