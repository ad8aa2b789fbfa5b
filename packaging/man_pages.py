"""Write a man page of `flatout` and of each command, from the parser that prints `--help`.

    python packaging/man_pages.py build/man

Each page has the command's help, its options with their meaning, and its example. The build hook puts the pages into
the wheel, so that `man flatout-tune` works where the environment's `bin` is in `PATH`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def pages() -> dict[str, str]:
    """Return the text of each page by its file name: `flatout-tune.1`."""
    from flatout import __version__
    from flatout.cli import parser

    commands = dict(_commands("flatout", parser()))
    named = {}
    for name, command in commands.items():
        others = [other for other in commands if other.rpartition(" ")[0] == name or other == name.rpartition(" ")[0]]
        named[f"{name.replace(' ', '-')}.1"] = _page(name, command, others, __version__)
    return named


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield name, command
    for child, its in getattr(command, "commands", {}).items():
        yield from _commands(f"{name} {child}", its)


def _page(name: str, command: Any, others: list[str], version: str) -> str:
    context = command.make_context(name, [], resilient_parsing=True)
    title = name.replace(" ", "-")
    paragraphs = [_plain(text) for text in inspect.cleandoc(command.help or "").split("\n\n")]
    lines = [
        f'.TH "{_escaped(title.upper())}" "1" "" "Flatout {version}" "Flatout"',
        ".SH NAME",
        f"{_escaped(title)} \\- {_line(paragraphs[0])}",
        ".SH SYNOPSIS",
        f".B {_escaped(name)}",
        _escaped(" ".join(command.collect_usage_pieces(context))),
        ".SH DESCRIPTION",
    ]
    for paragraph in paragraphs:
        lines += [".PP", *_body(paragraph)]
    lines.append(".SH OPTIONS")
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and not getattr(parameter, "hidden", False):
            lines += [".TP", f".B {_escaped(record[0].strip())}", _line(record[1])]
    if hasattr(command, "commands"):
        lines.append(".SH COMMANDS")
        for child, its in command.commands.items():
            summary = inspect.cleandoc(its.help or "").split("\n\n")[0]
            lines += [".TP", f".B {_escaped(child)}", _line(summary)]
    if others:
        named = ", ".join(f"\\fB{_escaped(other.replace(' ', '-'))}\\fR(1)" for other in others)
        lines += [".SH SEE ALSO", named]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    return text.replace("\b\n", "")


def _body(paragraph: str) -> list[str]:
    """Return a paragraph; lines of an example, which are indented, stay as they are."""
    rows = paragraph.splitlines()
    if not any(row.startswith("  ") for row in rows):
        return [_line(paragraph)]
    return [".nf", *(_escaped(row) for row in rows), ".fi"]


def _line(text: str) -> str:
    return _escaped(" ".join(text.split()))


def _escaped(text: str) -> str:
    """Return the text for troff: backslashes and hyphens as themselves, and no line that begins as a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def write_pages(folder: Path) -> list[Path]:
    """Write all pages, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in pages().items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/man")
    print(f"wrote {len(write_pages(target))} pages to {target}")
