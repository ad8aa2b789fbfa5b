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
    flags = {word.partition("=")[0] for word in added if word.startswith("-")}
    kept = [word for word in words[place:] if word.partition("=")[0] not in flags or "=" not in word]
    return (*words[:place], *added, *kept)


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
