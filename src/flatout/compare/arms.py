"""The two commands of a comparison, as the user gives them: arguments, variables, a commit and a Python environment.

In: the texts of `--a`, `--b` and their options. Out: an `ArmRequest` each, and the environment to run it in. Nothing is
started here but the environment's own Python, which is asked where it finds its modules.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout.errors import InputError, UsageError
from flatout.records.comparison import ArmName

_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_SHELL_WORDS = frozenset({"&&", "||", "|", ";", "&", ">", ">>", "<", "2>", "2>&1", "&>"})
# Programs of a Python environment. If they were found in another environment, they would run the arm there.
_PYTHON_PROGRAM = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed|lightning|fabric|composer")
_SEARCH_TIMEOUT_S = 60.0
# Prints the folders in which modules are found, including those that an editable installation maps packages to.
_SEARCH = """
import json, os, sys
folders = [path for path in sys.path if path]
for module in list(sys.modules.values()):
    mapping = getattr(module, "MAPPING", None)
    if module.__name__.startswith("__editable__") and isinstance(mapping, dict):
        folders += [os.path.dirname(path) for path in mapping.values()]
print(json.dumps(folders))
"""


class ArmRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one arm is to run. `python` is the folder of a Python environment."""

    name: ArmName
    command: tuple[str, ...]
    variables: dict[str, str] = {}  # written before the command: `NAME=VALUE torchrun ...`
    ref: str | None = None
    python: Path | None = None


def arm_request(
    name: ArmName, text: str | None, words: Sequence[str], *, ref: str | None = None, python: Path | None = None
) -> ArmRequest:
    """Return the request for one arm, whose command is `text` or, without one, the words after `--`.

    Raises UsageError if the command is empty or needs a shell, and InputError if there is no such Python environment.
    """
    option = f"--{name.lower()}"
    if text is not None:
        words = _split(option, text)
    variables: dict[str, str] = {}
    rest = list(words)
    while rest and _VARIABLE.match(rest[0]):
        variable, _, value = rest.pop(0).partition("=")
        variables[variable] = value
    if not rest:
        raise UsageError(f"`{option}` must be a command, but is empty", hint=f"{option} 'torchrun ... train.py'")
    environment = _environment_folder(f"{option}-python", python) if python is not None else None
    if environment is not None:
        _check_program(f"{option}-python", rest[0], environment)
    return ArmRequest(name=name, command=tuple(rest), variables=variables, ref=ref, python=environment)


def _split(option: str, text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError as error:
        problem = str(error).lower()
        raise UsageError(f"`{option}` cannot be parsed as a command: {problem}: {text}") from error
    for word in words:
        if word in _SHELL_WORDS or word.endswith(";"):
            raise UsageError(
                f"`{option}` is run without a shell, but has `{word}`", hint=f"{option} \"bash -c 'COMMANDS'\""
            )
    return words


def _environment_folder(option: str, python: Path) -> Path:
    """Return the folder of the environment, of which the folder or its Python is given."""
    given = python.expanduser().absolute()
    folder = given.parent.parent if given.is_file() else given
    if not os.access(folder / "bin" / "python", os.X_OK):
        raise InputError(
            f"`{option}` must be a Python environment, but {folder}/bin/python cannot be run",
            hint="pass the folder of a virtual or conda environment, or its python",
        )
    return folder


def _check_program(option: str, program: str, environment: Path) -> None:
    """Raise UsageError if the command would start in another Python environment than the one asked for."""
    is_path = os.sep in program
    is_own = is_path and Path(program).absolute().parent == environment / "bin"
    if not _PYTHON_PROGRAM.fullmatch(os.path.basename(program)) or is_own:
        return
    if is_path:
        raise UsageError(
            f"the command starts {program}, so `{option}` would have no effect",
            hint=f"start it by its name: {os.path.basename(program)}",
        )
    if shutil.which(program, path=str(environment / "bin")) is None:
        raise InputError(f"`{program}` is not in {environment}/bin", hint=f"install it there, or omit `{option}`")


def arm_environment(request: ArmRequest, environment: Mapping[str, str], trees: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an arm's command.

    `trees` maps the repository to the worktree of the arm's commit: modules that Python would find in the first are
    found in the second, also those of an editable installation.
    """
    changed = dict(environment)
    if request.python is not None:
        changed.pop("PYTHONHOME", None)
        changed["PATH"] = os.pathsep.join([str(request.python / "bin"), environment.get("PATH", os.defpath)])
        is_conda = (request.python / "conda-meta").is_dir()
        changed["CONDA_PREFIX" if is_conda else "VIRTUAL_ENV"] = str(request.python)
    changed |= request.variables
    if trees:
        found_in = [*_moved(_module_folders(request, changed), trees), changed.get("PYTHONPATH", "")]
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, found_in))
    return changed


def _module_folders(request: ArmRequest, environment: Mapping[str, str]) -> list[str]:
    """Return where the arm's Python finds modules; none if it cannot be asked."""
    python = request.command[0] if os.path.basename(request.command[0]).startswith("python") else "python"
    program = shutil.which(python, path=environment.get("PATH"))
    if program is None:
        return []
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        done = subprocess.run(
            [program, "-c", _SEARCH],
            env=dict(environment),
            cwd=os.sep,
            capture_output=True,
            timeout=_SEARCH_TIMEOUT_S,
            check=True,
        )
        return [str(folder) for folder in json.loads(done.stdout)]
    return []


def _moved(folders: Sequence[str], trees: Mapping[str, str]) -> list[str]:
    """Return the folders inside a repository as they are in its worktree, without duplicates."""
    moved = []
    for folder in map(os.path.realpath, folders):
        for repository, tree in trees.items():
            if folder == repository or folder.startswith(repository + os.sep):
                moved.append(tree + folder.removeprefix(repository))
    return list(dict.fromkeys(path for path in moved if os.path.isdir(path)))
