"""Give a trial of Triton a model repository whose config.pbtxt has further lines; the user's own is not touched.

In: the command, the engine's table, the model's name, lines, a new folder. Out: the command with that folder as its
repository. The folder holds links to the user's files, and one config.pbtxt that is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flatout.input_files import read_text
from flatout.secrets import write_private
from flatout.serving.engine import Engine
from flatout.serving.trial import ServerError
from flatout.serving.words import ServerCommand, option_value, with_option

CONFIG = "config.pbtxt"


def with_model_config(
    command: ServerCommand, engine: Engine, model: str | None, lines: Sequence[str], folder: Path
) -> ServerCommand:
    """Return the command with a repository in `folder`. Raise ServerError if there is none to begin with."""
    option = engine.repository_option
    repository = None if option is None else option_value(command.words, option)
    if option is None or not repository or model is None:
        raise ServerError(
            "not_started",
            "the lines of config.pbtxt need a repository in the command and the model's name in the load (`model`)",
        )
    try:
        _write(Path(repository).absolute(), model, lines, folder)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ServerError("not_started", f"the model repository {repository} cannot be read: {reason}") from None
    return ServerCommand(words=with_option(command.words, option, str(folder)), environment=command.environment)


def _write(repository: Path, model: str, lines: Sequence[str], folder: Path) -> None:
    (folder / model).mkdir(parents=True)
    for entry in repository.iterdir():
        if entry.name != model:
            (folder / entry.name).symlink_to(entry)
    for entry in (repository / model).iterdir():
        if entry.name != CONFIG:
            (folder / model / entry.name).symlink_to(entry)
    config = repository / model / CONFIG
    present = read_text(config) if config.exists() else ""
    for line in lines:
        block = line.split()[0]
        if block in present:
            raise ServerError("not_started", f"{config} has {block} already, which Flatout does not replace")
    write_private(folder / model / CONFIG, "\n".join([present.rstrip(), *lines, ""]))
