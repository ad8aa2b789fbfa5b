"""Turn a `RunRequest` into the command and environment to start, with the changes of its tuned.toml applied."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flatout.change.launchers import launch_value, with_launch_words
from flatout.emit import tuned_toml
from flatout.errors import InputError
from flatout.launch import with_inside
from flatout.records.change import ChangeSet
from flatout.records.expectation import StepExpectation
from flatout.run.request import RunRequest
from flatout.secrets import MASK, masked_command
from flatout.trial.command import TRIAL_DIR, describe, keeps_outputs_apart, trial_command


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCommand:
    """The command that is about to be started."""

    command: tuple[str, ...]
    variables: dict[str, str]  # set by the changes
    environment: dict[str, str]
    changes: ChangeSet
    expectation: StepExpectation | None = None  # of the step with the changes
    warnings: tuple[str, ...] = ()  # about options of the user that are replaced
    notes: tuple[str, ...] = ()  # printed when the command is started

    def as_typed(self) -> str:
        """Return the command as typed in a shell, with the variables that it needs; secrets are masked."""
        variables = dict(self.variables)
        if self.changes.patches:
            variables = {"PYTHONPATH": self.environment["PYTHONPATH"]} | variables
        return describe(variables, masked_command(self.command))

    def masked_notes(self) -> tuple[str, ...]:
        """Return a note for whoever copies `as_typed`, if secrets are masked there."""
        if masked_command(self.command) == self.command:
            return ()
        return (f"values that look like secrets are {MASK} in this command, but not in the one that is run",)


def prepare(request: RunRequest, environment: Mapping[str, str]) -> PreparedCommand:
    """Apply the changes of `request.config`. Raises InputError for a tuned.toml that cannot be read."""
    folder = _working_folder()
    tuned = tuned_toml.read(request.config) if request.config is not None else None
    changes = tuned.change_set() if tuned is not None else ChangeSet(changes=())
    command = request.command
    warnings: tuple[str, ...] = ()
    if request.max_restarts:
        command, warnings = _without_own_restarts(command, request.max_restarts)
    applied = trial_command(command, changes, folder)
    notes = []
    if tuned is not None:
        names = ", ".join(change.name for change in changes.changes)
        notes.append(f"with {names or 'no change'}")
        notes += _notes_on_another_script(tuned.command, command, changes)
    if keeps_outputs_apart(command):
        notes.append(f"{TRIAL_DIR} is this folder: {folder}")
    return PreparedCommand(
        command=applied.words,
        variables=applied.variables,
        environment=with_inside(environment) | applied.variables,
        changes=changes,
        expectation=tuned.expectation() if tuned is not None and changes.changes else None,
        warnings=warnings,
        notes=tuple(notes),
    )


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise InputError("the working folder no longer exists", hint="change to a folder that exists") from None


def _without_own_restarts(command: tuple[str, ...], max_restarts: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Set torchrun's own `--max-restarts` to 0; also return the warning that says so.

    Torchrun's restarts would multiply Flatout's, and torchrun does not know what failed.
    """
    own_restarts = launch_value(command, "torchrun", "--max-restarts")
    if own_restarts in (None, "0"):
        return command, ()
    warning = (
        f"torchrun's own --max-restarts is 0 instead of {own_restarts}: "
        f"Flatout restarts the job, at most {max_restarts} times"
    )
    return tuple(with_launch_words(command, "torchrun", ("--max-restarts=0",))), (warning,)


def _notes_on_another_script(tuned_command: Sequence[str], command: Sequence[str], changes: ChangeSet) -> list[str]:
    """Return warnings that arguments tuned on one script can mean something else to another script."""
    tuned_scripts = _scripts(tuned_command)
    scripts = _scripts(command)
    arguments = [
        word
        for change in changes.changes
        if change.argument is not None
        for words in change.argument.words
        for word in words
    ]
    is_another_script = tuned_scripts and scripts and tuned_scripts.isdisjoint(scripts)
    if not arguments or not is_another_script:
        return []
    return [
        f"tuned on {', '.join(sorted(tuned_scripts))}; "
        f"{', '.join(sorted(scripts))} still gets its arguments {shlex.join(masked_command(arguments))}"
    ]


def _scripts(command: Sequence[str]) -> set[str]:
    return {Path(word).name for word in command if word.endswith(".py")}
