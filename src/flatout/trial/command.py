"""Build the command and the variables of one trial from the user's command and a set of changes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.change.arguments import with_arguments
from flatout.change.launchers import calls, with_launch_words
from flatout.errors import UsageError
from flatout.inside.protocol import Variable
from flatout.records.change import ChangeSet

TRIAL_DIR = "{trial_dir}"


class TrialCommand(msgspec.Struct, frozen=True, kw_only=True):
    words: tuple[str, ...]
    variables: dict[str, str]  # added to the environment


def trial_command(command: Sequence[str], changes: ChangeSet, trial_dir: Path) -> TrialCommand:
    """Apply the changes to `command`, and replace `{trial_dir}` with the trial's folder."""
    words = with_arguments(command, changes.arguments)
    for launcher, added in changes.launch.items():
        if not calls(words, launcher):
            raise UsageError(f"a change adds {' '.join(added)} to {launcher}, which the command does not call")
        words = with_launch_words(words, launcher, added)
    patches = [msgspec.to_builtins(patch) for patch in changes.patches]
    variables = dict(changes.environment)
    if patches:
        variables[Variable.PATCHES] = json.dumps(patches)
    return TrialCommand(words=tuple(word.replace(TRIAL_DIR, str(trial_dir)) for word in words), variables=variables)


def keeps_outputs_apart(command: Sequence[str]) -> bool:
    return any(TRIAL_DIR in word for word in command)


def describe(variables: Mapping[str, str], words: Sequence[str]) -> str:
    """Return the command as a user would type it."""
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in variables.items()), shlex.join(words)])
