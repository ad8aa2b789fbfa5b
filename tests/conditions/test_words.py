"""The words of `--fail-on`: how they are parsed, and that each is documented."""

from __future__ import annotations

import pytest

from flatout.cli import parser
from flatout.conditions.words import WORDS, Condition, help_of, parse_conditions
from flatout.errors import UsageError
from flatout.keep.account import CLASSES


@pytest.mark.parametrize(
    ("command", "text", "word", "share"),
    [
        ("diff", "slower=5%", "slower", 0.05),
        ("diff", "slower=5", "slower", 0.05),
        ("diff", "7.5 %", "slower", 0.075),
        ("diff", "new-finding", "new-finding", None),
        ("diff", "efficiency=80%", "efficiency", 0.8),
        ("tune", "no-gain", "no-gain", None),
        ("tune", "10%", "gain", 0.1),
        ("bench", "peer=20%", "peer", 0.2),
        ("ledger", "90%", "goodput", 0.9),
        ("ledger", "hang=2%", "hang", 0.02),
        ("diagnose", "10%", "finding", 0.1),
        ("diagnose", "straggler", "straggler", None),
    ],
)
def test_a_condition(command: str, text: str, word: str, share: float | None) -> None:
    names = {"ledger": CLASSES, "diagnose": ("straggler",)}.get(command, ())
    (condition,) = parse_conditions(command, [text], names)
    assert condition == Condition(word=word, share=pytest.approx(share) if share is not None else None)


@pytest.mark.parametrize(
    ("command", "text", "message"),
    [
        (
            "diff",
            "slowr=5%",
            "`--fail-on` must be PERCENT or one of slower=PERCENT, efficiency=PERCENT, new-finding",
        ),
        ("diff", "slower", "`--fail-on` must be PERCENT or one of"),
        ("diff", "new-finding=3%", "`--fail-on` must be PERCENT or one of"),
        ("diff", "", "`--fail-on` must be PERCENT or one of"),
        ("diff", "slower=", "`--fail-on` must have a percentage from 0 to 1,000, but got slower="),
        ("diff", "slower=-1%", "`--fail-on` must have a percentage from 0 to 1,000, but got slower=-1%"),
        ("diff", "1001%", "`--fail-on` must have a percentage from 0 to 1,000, but got 1001%"),
        ("diff", "nan", "`--fail-on` must have a percentage from 0 to 1,000, but got nan"),
        ("ledger", "CLASS=2%", "`--fail-on` must be PERCENT or one of goodput=PERCENT, CLASS=PERCENT, failures, hangs"),
        ("diagnose", "slow", "`--fail-on` must be PERCENT or one of finding=PERCENT, NAME, but got slow"),
    ],
)
def test_what_is_refused(command: str, text: str, message: str) -> None:
    names = {"ledger": CLASSES, "diagnose": ("straggler",)}.get(command, ())
    with pytest.raises(UsageError) as raised:
        parse_conditions(command, [text], names)
    assert str(raised.value).startswith(message)


def test_1000_percent_is_the_most() -> None:
    assert parse_conditions("diff", ["1000%"])[0].share == pytest.approx(10)


def test_each_command_has_the_option_and_says_its_words() -> None:
    commands = parser().commands
    for name in WORDS:
        option = next(parameter for parameter in commands[name].params if "--fail-on" in parameter.opts)
        assert option.help == help_of(name)
        assert all(word.form in option.help for word in WORDS[name])
