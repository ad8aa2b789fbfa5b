"""Arguments of the functions of `flatout.api`: commands, paths and ranges, checked before any work."""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path

from flatout.errors import UsageError, printable

AnyPath = str | PathLike[str]
Say = Callable[[str], None]
Progress = Callable[[int, int], None]  # done so far, and their total


def say_to_stderr(line: str) -> None:
    """Print one line of progress on standard error, as the commands do."""
    print(f"flatout: {printable(line)}", file=sys.stderr, flush=True)


def no_note(line: str) -> None:
    """Drop a note."""


def words_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command, which a text separates as a shell does. Raises UsageError if it is none."""
    if isinstance(command, str):
        try:
            return tuple(shlex.split(command))
        except ValueError as error:
            raise UsageError(f"a command cannot be parsed as shell words: {command}") from error
    given: object = command
    words = list(given) if isinstance(given, Iterable) else [given]
    texts = [word for word in words if isinstance(word, str)]
    if texts != words:
        raise UsageError(f"`command` must be a text or a list of texts, but is {command!r}")
    return tuple(texts)


def some_words_of(command: str | Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command. Raises UsageError if there is none."""
    words = words_of(command)
    if not words:
        raise UsageError("`command` must have at least one word", hint="pass, e.g., ['python', 'train.py']")
    return words


def paths_of(paths: AnyPath | Sequence[AnyPath]) -> list[Path]:
    """Return one path or several as a list. Raises UsageError if there is none, or if one is empty."""
    each = [paths] if isinstance(paths, str | PathLike) or not isinstance(paths, Iterable) else list(paths)
    if not each:
        raise UsageError("`paths` must name at least one file, folder or archive")
    return [path_of(path) for path in each]


def path_of(path: AnyPath) -> Path:
    """Return a path to read. Raises UsageError if it is empty, as Path("") is the working folder, or no path."""
    if not isinstance(path, str | PathLike):
        raise UsageError(f"a path must be a text or a pathlib.Path, but is {path!r}")
    if not str(path):
        raise UsageError("a path must not be empty", hint="pass a file, folder or archive; . is the current folder")
    return Path(path)


def optional_path(path: AnyPath | None) -> Path | None:
    """Return the path to read, or None without one."""
    return None if path is None else path_of(path)


def check_range(name: str, value: float | None, *, least: float, most: float = 1e9) -> None:
    """Raise UsageError if the value is given and is outside its range."""
    if value is not None and not least <= value <= most:
        raise UsageError(f"`{name}` must be from {least:,.12g} to {most:,.12g}, but is {value!r}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """Raise UsageError if the value is none of the choices."""
    if value not in choices:
        raise UsageError(f"`{name}` must be one of {', '.join(choices)}, but is {value!r}")


def check_main_thread(name: str) -> None:
    """Raise UsageError outside the main thread, the only one that can handle the signals that end a job."""
    if threading.current_thread() is not threading.main_thread():
        raise UsageError(
            f"`{name}` must run in the main thread, which receives the signals that end a job",
            hint="start it in a separate process",
        )
