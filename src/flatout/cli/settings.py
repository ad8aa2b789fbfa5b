"""`flatout.toml` in the working folder: values that stand in for options that are not on the command line.

In: the file, and the parser of all commands. Out: the parser's map of defaults, and which options of the command that
runs are set by the file. A table for each command, such as `[tune]` or `[schedule.replay]`, has its options by their
long names without the dashes. Options that permit something, such as `--force`, or are run as programs must be typed:
the file can be in a folder that somebody else wrote.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flatout.errors import InputError

FILE = "flatout.toml"
WITHOUT_FILE = "init"  # the command that writes the file
_PERMIT = {"force", "apply", "take-over", "allow-write"}
_ARE_RUN = {"a", "b", "a-python", "b-python", "eval", "eval-final", "bench"}
MUST_BE_TYPED = {*_PERMIT, *_ARE_RUN, "help", "version"}
HINT = f"`flatout init --out -` lists every option that {FILE} can set"


def default_map(file: Path, parser: Any) -> dict[str, Any]:
    """Return the defaults that the file sets, by the names of commands and parameters; none without the file.

    Raises InputError for a file that is not TOML, and for a command, option or value that cannot stand in it.
    """
    if not file.is_file():
        return {}
    from flatout.input_records import read_table

    known = tables(parser)
    defaults: dict[str, Any] = {}
    for place, key, value in _values(read_table(file, hint=HINT), known, ""):
        table = known.get(place)
        parameter = options_of(table.command).get(key) if table is not None else None
        if table is None or parameter is None:
            raise InputError(f"`{file}`: {_unknown(place, key, known)}", hint=HINT)
        of_command = defaults
        for name in table.path:
            of_command = of_command.setdefault(name, {})
        of_command[parameter.name] = _value(value, parameter, f"{place}.{key}", file)
    return defaults


class Table(NamedTuple):
    """A table of the file: the command, and the names by which the parser finds it."""

    path: tuple[str, ...]
    command: Any


def tables(parser: Any) -> dict[str, Table]:
    """Return the table of every command, by its dotted name: `tune`, `tune.nccl`, `schedule.replay`."""
    named: dict[str, Table] = {}
    for name, command in parser.commands.items():
        if name == WITHOUT_FILE:
            continue
        place = name.replace(" ", ".")  # `tune nccl` is one name for the parser
        named[place] = Table((name,), command)
        for child, its in getattr(command, "commands", {}).items():
            named[f"{place}.{child}"] = Table((name, child), its)
    return named


def _values(content: Mapping[str, Any], known: Collection[str], place: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the table, the key and the value of each entry that is not itself the table of a command."""
    for key, value in content.items():
        inner = f"{place}.{key}" if place else key
        if isinstance(value, dict) and inner in known:
            yield from _values(value, known, inner)
        else:
            yield place, key, value


def options_of(command: Any) -> dict[str, Any]:
    """Return the options of a command that a file may set, by their long names without dashes."""
    named = {}
    for parameter in command.params:
        name = max(parameter.opts, key=len)
        if parameter.param_type_name == "option" and name.removeprefix("--") not in MUST_BE_TYPED:
            named[name.removeprefix("--")] = parameter
    return named


def _unknown(place: str, key: str, known: Mapping[str, Table]) -> str:
    """Return what is wrong with a key that is neither a command nor an option of its table."""
    if not place:
        return f"`{key}` is not a command of flatout{_nearest(key, known)}"
    if key in MUST_BE_TYPED:
        return f"`{place}.{key}` cannot be set in a file: pass `--{key}` on the command line"
    names = options_of(known[place].command)
    return f"`{place}.{key}` is not an option of `flatout {place.replace('.', ' ')}`{_nearest(key, names)}"


def _nearest(name: str, known: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; the nearest one is `{close[0]}`" if close else ""


def _value(value: object, parameter: Any, where: str, file: Path) -> Any:
    """Return the value as the parser takes it: a text, true or false for a flag, or a list where the option repeats."""
    if parameter.is_flag:
        if not isinstance(value, bool):
            raise InputError(f"`{file}`: `{where}` must be true or false, but is {value!r}", hint=HINT)
        return value
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not parameter.multiple:
        raise InputError(f"`{file}`: `{where}` must be one value, but is a list of {len(value)}", hint=HINT)
    for one in values:
        if isinstance(one, bool) or not isinstance(one, str | int | float):
            raise InputError(f"`{file}`: `{where}` must be a text or a number, but is {one!r}", hint=HINT)
    texts = [str(one) for one in values]
    if parameter.name == "model" and any(".py:" in text for text in texts):  # a file that is executed
        raise InputError(
            f"`{file}`: `{where}` cannot be a Python file, which is executed",
            hint=f"type `--model {texts[0]}` where it is meant",
        )
    return texts if parameter.multiple else texts[0]


class _Used:
    """The options that the file set for the command that runs, as words of the command line."""

    num_command_words = 0  # of the command's name: 2 for `schedule replay`
    words: tuple[str, ...] = ()


def with_used_words(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as typed, with the options from the file after the command's name."""
    at = _Used.num_command_words
    return [*arguments[:at], *_Used.words, *arguments[at:]]


def note_used(ctx: Any) -> None:
    """Say on standard error which options of this command come from the file, and keep them for `with_used_words`."""
    names: list[str] = []
    words: list[str] = []
    for parameter in ctx.command.params:
        source = ctx.get_parameter_source(parameter.name)
        value = ctx.lookup_default(parameter.name)
        if source is None or source.name != "DEFAULT_MAP" or value is False:
            continue
        name = max(parameter.opts, key=len)
        names.append(name)
        for one in value if isinstance(value, list) else [value]:
            words += [name] if parameter.is_flag else [name, str(one)]
    _Used.num_command_words = len(ctx.command_path.split()) - 1
    _Used.words = tuple(words)
    if names:
        print(f"flatout: from {FILE}: {', '.join(names)}", file=sys.stderr)
