"""Put the tuned arguments into the user's command: arguments are replaced or added, and otherwise unchanged."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from flatout.change.arguments import with_arguments
from flatout.change.launchers import calls, started_by, with_launch_words
from flatout.inside.protocol import Variable
from flatout.records.change import ChangeSet
from flatout.records.tuning import HEAD_NODE, Tuning

CONFIG = "tuned.toml"
MAX_LINE = 100  # characters; longer commands are broken into lines


def tuned_command(tuning: Tuning, *, with_patches: bool = True) -> tuple[str, ...]:
    """Return the command with the arguments of the script and of the launcher set.

    With patches, `flatout run` is put around the command and applies everything, also to keep the job alive.
    """
    if with_patches and tuning.needs_run:
        has_changes = tuning.needs_patches or bool(tuning.changes.changes)
        config = ("--config", tuning.config) if has_changes else ()
        return ("flatout", "run", *config, *tuning.keep, "--", *tuning.command)
    command = with_arguments(tuning.command, tuning.changes.arguments)
    for launcher, added in tuning.changes.launch.items():
        command = with_launch_words(command, launcher, added)
    return command


def without_srun(tuning: Tuning) -> tuple[Tuning, list[str]]:
    """Return the tuning with the command that `srun` starts, for places without Slurm, and a note on it."""
    command = started_by(tuning.command, "srun")
    if command == tuning.command:
        return tuning, []
    removed = shlex.join(tuning.command[: len(tuning.command) - len(command)])
    note = f"removed from the command: {removed}; a script that reads Slurm's variables finds none there"
    return msgspec.structs.replace(tuning, command=command), [note]


def script_lines(words: Sequence[str], *, indent: str = "    ") -> str:
    """Quote the command for a shell. A long command is broken into lines before its options."""
    line = shlex.join(words)
    if len(line) <= MAX_LINE:
        return line
    parts: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and parts[-1]:
            parts.append([])
        parts[-1].append(word)
    return f" \\\n{indent}".join(shlex.join(part) for part in parts)


def unplaced(tuning: Tuning, *, placed: Sequence[str] = ()) -> tuple[str, ...]:
    """Return notes on launcher arguments that fit neither the command nor, for launchers not in `placed`, the file."""
    return tuple(
        f"{' '.join(words)} is for {launcher}, which the command does not call"
        for launcher, words in tuning.changes.launch.items()
        if launcher not in placed and not calls(tuning.command, launcher)
    )


def named_head(words: Sequence[str]) -> tuple[str, ...]:
    """Return a note that only a Slurm job can fill in the first node, if the command names it."""
    if not any(HEAD_NODE in word for word in words):
        return ()
    return (f"{HEAD_NODE} in the command is the first node that Slurm allocates: replace it with a host name",)


def patch_note(changes: ChangeSet) -> tuple[str, ...]:
    """Return notes on how to apply what is done inside the processes, for a file that cannot hold it."""
    table: tuple[str, ...] = ()
    if Variable.NCCL_TABLE in changes.environment:
        table = (
            f"the table for NCCL changes nothing until the ranks have compared it, which they do under"
            f" `flatout run --config {CONFIG}`",
        )
    if not changes.patches:
        return table
    names = ", ".join(change.name for change in changes.changes if change.patch is not None)
    by_run = f"`flatout run --config {CONFIG}`"
    return (*table, f"{names}: applied inside the process, by {by_run} or by the snippet in your code")


def argument_notes(changes: ChangeSet) -> list[str]:
    """Return notes on changes that are arguments of a launcher or the script, for a file that holds no command."""
    notes = [f"{' '.join(words)}: an argument of {launcher}" for launcher, words in changes.launch.items()]
    for argument in changes.arguments:
        notes += [f"{' '.join(words)}: an argument of the script" for words in argument.words]
    return notes


def config_note(tuning: Tuning, place: str, with_flatout: str) -> list[str]:
    """Return a note on where `flatout run` must find flatout and, if the command needs it, tuned.toml."""
    if not tuning.needs_run:
        return []
    if not tuning.needs_patches and not tuning.changes.changes:
        return [with_flatout]
    return [place]
