"""The help of commands: whole summaries, groups of commands under headings, and usage without Typer's braces."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from flatout.cli import durations, settings

NO_WRAP = "\b"  # as the first line of a paragraph


class Command(TyperCommand):
    """A command whose help shows its examples as lines to copy, and the rule of durations if it takes one.

    Its usage shows a required argument as `PATH...`, where Typer writes `{PATH...}`.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.help = _arranged(self)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]
        pieces = super().collect_usage_pieces(ctx)  # type: ignore[arg-type, unused-ignore]
        return [piece.removeprefix("{").removesuffix("}") for piece in pieces]

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        settings.note_used(ctx)
        return super().invoke(ctx)  # type: ignore[arg-type, unused-ignore]


class Group(TyperGroup):
    """A group that lists each command with its complete summary, under the headings in `headings` if there are any."""

    headings: Mapping[str, Sequence[str]] = {}

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.help = _arranged(self)

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override]
        is_command_named = bool(ctx._protected_args or ctx.args)
        if self.invoke_without_command and not is_command_named:
            settings.note_used(ctx)
        return super().invoke(ctx)  # type: ignore[arg-type, unused-ignore]

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]
        sections = self.headings or {"Commands": list(self.commands)}
        width = max(len(name) for names in sections.values() for name in names)
        for heading, names in sections.items():
            rows = [(name.ljust(width), summary(self.commands[name])) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)


def _arranged(command: Any) -> str:
    """Return the help with each example on its own line at the end, after the rule of durations if it applies."""
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    described = [paragraph for paragraph in paragraphs if not paragraph.startswith("Example")]
    examples = [_unwrapped(paragraph) for paragraph in paragraphs if paragraph.startswith("Example")]
    if any(durations.METAVAR in str(parameter.metavar) for parameter in command.params):
        described.append(durations.HELP)
    return "\n\n".join([*described, *examples])


def _unwrapped(example: str) -> str:
    heading, _, commands = example.partition(":")
    lines = [f"  {line.strip()}" for line in commands.strip().splitlines()]
    return "\n".join([NO_WRAP, f"{heading}:", *lines])


def summary(command: Any) -> str:
    """Return the first paragraph of a command's help."""
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
