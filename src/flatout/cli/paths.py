"""Arguments and options that are paths to read: none may be empty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from flatout.errors import UsageError


def path_option(*names: str, help: str, metavar: str = "FILE") -> Any:
    """Declare an option that is a path."""
    return typer.Option(*names, metavar=metavar, parser=given_path, help=help)


def path_argument(*, help: str, metavar: str) -> Any:
    """Declare an argument that is a path, or one of several."""
    return typer.Argument(metavar=metavar, parser=given_path, help=help, show_default=False)


def given_path(text: str) -> Path:
    """Return a path to read, as the user gave it. Raises UsageError if it is empty, as Path("") is the working folder.

    Whether the path exists and can be read is checked when it is read.
    """
    if not text:
        raise UsageError("a path must not be empty", hint="pass a file, folder or archive; . is the current folder")
    return Path(text)
