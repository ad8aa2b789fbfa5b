"""`flatout init`: write a commented `flatout.toml`, whose values stand in for options of the commands."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from flatout.cli.settings import FILE, MUST_BE_TYPED, options_of, tables

_WIDTH = 100
_HEAD = f"""\
# {FILE}: values that stand in for options of `flatout`, read from the folder in which a command starts.
#
# A value here replaces the default, and an option on the command line replaces the value here. Remove the `#` before a
# key to set it. An option that may be repeated takes a list; a duration is a text such as "20m". These can
# only be passed on the command line:
# {", ".join(f"--{name}" for name in sorted(MUST_BE_TYPED - {"help", "version"}))}.
"""


def init(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write; - for standard output.")] = Path(FILE),
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a flatout.toml with every option that a file can set, each with its meaning and default.

    Example: flatout init
    """
    from flatout.report.files import write_new

    text = settings_text(ctx.find_root().command)
    if str(out) == "-":
        sys.stdout.write(text)
        return
    write_new(out, text, force=force)
    print(f"wrote {out}: remove the # before a value to set it", file=sys.stderr)
    if out.name != FILE:
        print(f"note: commands read {FILE} in the folder in which they start, and no other file", file=sys.stderr)


def settings_text(parser: Any) -> str:
    """Return the file: a table for each command, with its options as comments."""
    parent = parser.make_context("flatout", [], resilient_parsing=True)
    sections = [_HEAD]
    for place, table in tables(parser).items():
        options = options_of(table.command)
        if options:
            sections.append(_section(place, options, table.command, parent))
    return "\n".join(sections)


def _section(place: str, options: dict[str, Any], command: Any, parent: Any) -> str:
    context = command.make_context(place, [], parent=parent, resilient_parsing=True)
    lines = [f"[{place}]"]
    for name, parameter in options.items():
        record = parameter.get_help_record(context)
        if record is not None:
            lines += textwrap.wrap(record[1], _WIDTH, initial_indent="# ", subsequent_indent="# ")
            lines.append(f"# {name} = {_example(parameter)}")
    return "\n".join(lines) + "\n"


def _example(parameter: Any) -> str:
    """Return the default as TOML, or a value of the option's form where it has none."""
    if parameter.is_flag:
        return "true"
    value = parameter.default
    if parameter.multiple:
        return f"[{_text(parameter.metavar or name_of(parameter))}]"
    if value is None or callable(value):
        return _text(parameter.metavar or name_of(parameter))
    if isinstance(value, int | float):
        return str(value)
    return _text(str(value))


def name_of(parameter: Any) -> str:
    """Return the name of an option's value where its help gives none."""
    return str(parameter.name).upper()


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
