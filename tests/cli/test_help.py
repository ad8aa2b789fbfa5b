"""What the help of every command says, at two widths of a terminal, and what completes it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from tests.cli.commands import commands, is_group

from flatout.cli import HEADINGS, VERBS, durations, parser
from flatout.cli.help import summary

COMMANDS = commands()
WIDTHS = (80, 120)


def help_of(name: str, width: int) -> str:
    command = COMMANDS[name]
    context = parser().make_context("flatout", [], resilient_parsing=True, terminal_width=width)
    if name != "flatout":
        context = command.make_context(
            name.removeprefix("flatout "), [], parent=context, resilient_parsing=True, terminal_width=width
        )
    return str(command.get_help(context))


def unwrapped(text: str) -> str:
    return " ".join(text.split())


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_terminal_and_shows_nothing_of_the_parser(name: str, width: int) -> None:
    text = help_of(name, width)
    assert re.findall(r"<[a-z_ ]+>", text) == [], "a type in place of a word for the value"
    assert re.findall(r"\bb'|\bb\"", text) == [], "bytes"
    assert re.findall(r"<=?x|x[<>]=?", text) == [], "a range as the parser writes it"
    assert "{" not in text.splitlines()[0], "usage"
    lines = [line for line in text.splitlines() if not line.startswith("    flatout ")]  # examples to copy
    assert [line for line in lines if len(line) > width] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_summary_and_an_example_and_its_texts_are_sentences(name: str) -> None:
    command = COMMANDS[name]
    text = unwrapped(help_of(name, 80))
    assert re.fullmatch(r"[A-Z].+\.", summary(command))
    assert is_group(command) or f"Example: {name} " in text or f"Examples: {name} " in text
    assert "-h, --help Show this message and exit." in text
    for parameter in command.params:
        meaning = re.sub(r" \[default: [^\]]+\]$", "", parameter.help or "")
        assert meaning.endswith(".") or "[default: " in parameter.help, f"{parameter.opts}: {meaning}"
        assert re.match(r"[A-Z]|`|tuned\.toml |samples/s, |slurm, ", meaning), f"{parameter.opts}: {meaning}"
        assert not meaning.startswith(("Of ", "What ", "Where the ")), f"{parameter.opts}: {meaning}"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_first_help_shows_every_command_with_its_whole_summary_under_a_heading(width: int) -> None:
    text = help_of("flatout", width)
    headings = re.findall(r"^([A-Z][a-z ]+):$", text, re.MULTILINE)
    assert headings == ["Options", *HEADINGS]
    for heading, names in HEADINGS.items():
        section = text.split(f"\n{heading}:\n")[1].split("\n\n")[0]
        assert re.findall(r"^  (\w+)  ", section, re.MULTILINE) == list(names)
        for name in names:
            assert summary(COMMANDS[f"flatout {name}"]) in unwrapped(section)
    assert sorted(VERBS) == sorted(name.removeprefix("flatout ") for name in COMMANDS if name.count(" ") == 1)


@pytest.mark.parametrize("name", ["flatout schedule", "flatout cost", "flatout plan"])
def test_the_help_of_a_group_shows_whole_summaries(name: str) -> None:
    text = unwrapped(help_of(name, 80))
    for child, command in COMMANDS[name].commands.items():
        assert f"{child} {summary(command)}" in text


def test_the_rule_of_durations_is_told_where_there_are_some() -> None:
    for name, command in COMMANDS.items():
        has_duration = any(durations.METAVAR in str(parameter.metavar) for parameter in command.params)
        assert (durations.HELP in unwrapped(help_of(name, 80))) == has_duration


def complete(*words: str, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    """What a shell is told after `flatout WORDS` and a tab."""
    program = (
        "import sys\n"
        "from flatout.cli import main\n"
        "sys.argv = ['flatout']\n"
        "code = main()\n"
        "print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    line = " ".join(["flatout", *words])
    environment = {
        "_FLATOUT_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words)),
        "_TYPER_COMPLETE_ARGS": line,
    }
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=os.environ | environment
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sch"], ["schedule"]),
        (["cost", "p"], ["power-cap"]),
        (["plan", "ev"], ["evaluate"]),
        (["tune", "--bud"], ["--budget"]),
    ],
)
def test_commands_and_options_are_completed_without_loading_what_they_use(words: list[str], found: list[str]) -> None:
    done = complete(*words)
    assert done.stdout.split() == found
    assert {"numpy", "scipy", "msgspec", "rich", "torch"}.isdisjoint(done.stderr.split())


def test_completion_can_be_installed_and_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flatout", "--show-completion", "bash"], capture_output=True, text=True, check=False
    )
    assert "--install-completion" in help_of("flatout", 80)
    assert "_FLATOUT_COMPLETE" in done.stdout + done.stderr or "not supported" in done.stderr
    assert json.dumps("Traceback") not in done.stderr
