"""The reference of the commands, from their help."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flatout.cli import parser
from flatout.cli.help import NO_WRAP
from flatout.conditions.words import WORDS
from generators.markdown import table


def cli() -> str:
    """Return each verb: usage, description, arguments and options."""
    group: Any = parser()
    parent = group.make_context("flatout", [], resilient_parsing=True)
    return "\n\n".join(_verb(name, command, parent) for name, command in _commands(group, ""))


def _commands(group: Any, before: str) -> Iterable[tuple[str, Any]]:
    """Yield the commands of a group and of the groups in it, by their whole names: `schedule replay`."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            if command.invoke_without_command:
                yield before + name, command
            yield from _commands(command, f"{before}{name} ")
        else:
            yield before + name, command


def _verb(name: str, command: Any, parent: Any) -> str:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    usage = " ".join(command.collect_usage_pieces(context))
    rows = []
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and not getattr(parameter, "hidden", False):
            rows.append([f"`{record[0].strip()}`", " ".join(record[1].split())])
    text = "\n\n".join(_markdown(paragraph) for paragraph in inspect.cleandoc(command.help or "").split("\n\n"))
    return f"## flatout {name}\n\n```console\nflatout {name} {usage}\n```\n\n{text}\n\n" + table(
        ["Argument", "Meaning"], rows
    )


def _markdown(paragraph: str) -> str:
    """Return a paragraph of help; examples as a block to copy."""
    if not paragraph.startswith(NO_WRAP):
        return paragraph
    heading, *lines = paragraph.removeprefix(NO_WRAP).strip().splitlines()
    return "\n".join([heading, "", "```console", *(line.strip() for line in lines), "```"])


def conditions() -> str:
    """Return the words of `--fail-on`, by command."""
    rows = [
        [f"`{command}`", f"`{word.form}`", word.meaning.replace("N %", "PERCENT")]
        for command, words in WORDS.items()
        for word in words
    ]
    return table(["Command", "Condition", "Holds if"], rows)


GENERATORS: Mapping[str, Callable[[], str]] = {
    "cli": cli,
    "conditions": conditions,
}
