"""Build the tuner plugin with the compiler of this machine, once per user and source, in the user's cache folder.

In: the source in `plugin/`, and `CC` if it is set. Out: the path of the shared library. The name of the library has the
hash of the source, by which ranks on different machines compare their plugins: two compilers make different bytes of
one source.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flatout.change.tuner_plugin import plugin_folder
from flatout.errors import InputError, OutputError, UsageError
from flatout.input_files import read_bytes
from flatout.inside.protocol import PLUGIN_NAME

SOURCE = Path(__file__).parent / "plugin" / "flatout_tuner.c"
OPTIONS = ("-std=c11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
COMPILERS = ("cc", "gcc", "clang")
MAX_PATH = 254  # characters of NCCL_TUNER_PLUGIN that NCCL keeps
_LIMIT_S = 120.0


def built_plugin(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the plugin, which is built if it is not in the cache.

    Raises UsageError without a compiler, InputError if it fails, and OutputError if the cache cannot be written to.
    """
    target = plugin_folder(environment) / PLUGIN_NAME.of(source_hash())
    if len(str(target)) > MAX_PATH:
        raise OutputError(
            f"the path of the plugin must have at most {MAX_PATH} characters, because NCCL cuts it there, but"
            f" `{target}` has {len(str(target))}",
            hint="set XDG_CACHE_HOME to a folder with a shorter path",
        )
    if target.is_file():
        return target
    compiler = find_compiler(environment)
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiler, partial)
        partial.replace(target)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"`{target.parent}` cannot be written to: {reason}", hint="set XDG_CACHE_HOME") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
    return target


def source_hash() -> str:
    """Return the part of the library's name that stands for its source."""
    return hashlib.sha256(read_bytes(SOURCE)).hexdigest()[:16]


def find_compiler(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the command of a C compiler: `CC` if it is set, otherwise the first that there is."""
    path = environment.get("PATH")
    given = environment.get("CC", "").strip()
    try:
        commands = [tuple(shlex.split(given))] if given else [(name,) for name in COMPILERS]
    except ValueError as error:
        raise UsageError(f"`CC={given}` cannot be parsed as shell arguments", hint="set CC to a C compiler") from error
    for command in commands:
        if shutil.which(command[0], path=path) is not None:
            return command
    what = f"`CC={given}` is not there" if given else f"none of {', '.join(COMPILERS)} is there"
    raise UsageError(
        f"the tuner plugin needs a C compiler, but {what}",
        hint="install gcc or clang, or set CC; without the plugin, --no-plugin measures settings only",
    )


def _compile(compiler: Sequence[str], target: Path) -> None:
    command = [*compiler, *OPTIONS, "-o", str(target), str(SOURCE)]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(f"{shlex.join(compiler)} did not build the tuner plugin within {_LIMIT_S:.0f} s") from error
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
        why = errors[0].strip()[:300] if errors else f"it ended with code {done.returncode}"
        raise InputError(
            f"{shlex.join(compiler)} cannot build the tuner plugin: {why}", hint="set CC to another compiler"
        )
