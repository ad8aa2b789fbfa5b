"""The user's command with what was tuned in it: words exchanged or added, never rewritten otherwise."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import msgspec

from flatout.change.arguments import with_arguments
from flatout.change.launchers import calls, started_by, with_launch_words
from flatout.records.change import ChangeSet
from flatout.records.tuning import HEAD_NODE, Tuning

CONFIG = "tuned.toml"


def tuned_command(tuning: Tuning, *, with_patches: bool = True) -> tuple[str, ...]:
    """Arguments of the script and of the launcher set; with patches, `flatout run` around it applies them.

    So it does around a job that is to be kept alive.
    """
    words = with_arguments(tuning.command, tuning.changes.arguments)
    for launcher, added in tuning.changes.launch.items():
        words = with_launch_words(words, launcher, added)
    if with_patches and tuning.needs_run:
        config = ("--config", tuning.config) if tuning.needs_patches or tuning.changes.changes else ()
        return ("flatout", "run", *config, *tuning.keep, "--", *tuning.command)
    return words


def without_srun(tuning: Tuning) -> tuple[Tuning, list[str]]:
    """For where there is no Slurm: the command behind `srun`, and what to say of it."""
    command = started_by(tuning.command, "srun")
    if command == tuning.command:
        return tuning, []
    left_out = shlex.join(tuning.command[: len(tuning.command) - len(command)])
    note = f"left out of the command: {left_out}; a script that reads Slurm's variables finds none there"
    return msgspec.structs.replace(tuning, command=command), [note]


def script_lines(words: Sequence[str], *, indent: str = "    ") -> str:
    """The command quoted for a shell, broken before options of long lines."""
    line = shlex.join(words)
    if len(line) <= 100:
        return line
    parts: list[list[str]] = [[]]
    for word in words:
        if word.startswith("-") and parts[-1]:
            parts.append([])
        parts[-1].append(word)
    return f" \\\n{indent}".join(shlex.join(part) for part in parts)


def unplaced(tuning: Tuning, *, placed: Sequence[str] = ()) -> tuple[str, ...]:
    """Say which launcher arguments have no place in the command, nor in the file, as those of launchers in `placed`."""
    return tuple(
        f"{' '.join(words)} is for {launcher}, which the command does not call"
        for launcher, words in tuning.changes.launch.items()
        if launcher not in placed and not calls(tuning.command, launcher)
    )


def named_head(words: Sequence[str]) -> tuple[str, ...]:
    """What to say of words that only a Slurm job can fill in."""
    if not any(HEAD_NODE in word for word in words):
        return ()
    return (f"{HEAD_NODE} in the command is the first node that Slurm gives: put a host's name in its place",)


def patch_note(changes: ChangeSet) -> tuple[str, ...]:
    """What to say where a file cannot hold patches."""
    if not changes.patches:
        return ()
    names = ", ".join(change.name for change in changes.changes if change.patch is not None)
    return (f"{names}: applied inside the process, by `flatout run --config {CONFIG}` or by the snippet in your code",)
