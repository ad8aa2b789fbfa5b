"""The words of `--fail-on`, by command, and their parser.

In: the texts of the option, each `WORD`, `WORD=PERCENT`, or `PERCENT` alone, which stands for the command's first word.
Out: `Condition`s. Several conditions are alternatives. The reference page is generated from the tables here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flatout.errors import UsageError

MOST_PERCENT = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A word, and when its condition holds. `N` in the meaning is the percentage."""

    name: str
    meaning: str
    has_percentage: bool = False
    is_placeholder: bool = False  # in its place stands a name: of a finding, or of a class of the ledger

    @property
    def form(self) -> str:
        return f"{self.name}=PERCENT" if self.has_percentage else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    word: str
    share: float | None = None  # 0.05: 5 %


_FINDING = Word(name="finding", has_percentage=True, meaning="a finding costs at least N % of the step")
_FINDING_NAME = Word(name="NAME", is_placeholder=True, meaning="the job has the finding of this name, e.g. `straggler`")
WORDS: Mapping[str, tuple[Word, ...]] = {
    "diagnose": (_FINDING, _FINDING_NAME),
    "profile": (_FINDING, _FINDING_NAME),
    "diff": (
        Word(
            name="slower",
            has_percentage=True,
            meaning="B takes at least N % more time for the same work than A, in one run each; never for jobs of"
            " different sizes",
        ),
        Word(
            name="efficiency",
            has_percentage=True,
            meaning="the larger job's scaling efficiency is below N %; also if it is unknown",
        ),
        Word(name="new-finding", meaning="B has a finding that A has not"),
    ),
    "tune": (
        Word(name="gain", has_percentage=True, meaning="changes are shown to be better by at least N %"),
        Word(name="no-gain", meaning="no change is shown to be better"),
        Word(name="undecided", meaning="a change may be better, and the trials do not decide it"),
    ),
    "bench": (
        Word(
            name="peer",
            has_percentage=True,
            meaning="a GPU, rank or pair differs from its peers by the rule of `doctor`, and by at least N %",
        ),
        Word(name="slow-link", meaning="a PCIe link is slower or narrower under load than both of its ends support"),
        Word(name="not-measured", meaning="something could not be measured"),
    ),
    "ledger": (
        Word(name="goodput", has_percentage=True, meaning="the goodput is below N %; also if it is unknown"),
        Word(
            name="CLASS",
            has_percentage=True,
            is_placeholder=True,
            meaning="this class of the ledger took at least N % of the allocated time, e.g. `hang=2%`",
        ),
        Word(name="failures", meaning="an attempt failed"),
        Word(name="hangs", meaning="an attempt hung"),
    ),
}


def parse_conditions(command: str, texts: Sequence[str], names: Sequence[str] = ()) -> tuple[Condition, ...]:
    """Parse the texts of `--fail-on` for a command. Raises UsageError.

    `names` are what can stand for the command's placeholder: the names of findings, or of a ledger's classes.
    """
    return tuple(_condition(command, text, names) for text in texts)


def _condition(command: str, text: str, names: Sequence[str]) -> Condition:
    name, has_value, value = text.partition("=")
    words = WORDS[command]
    known = {word.name: word for word in words if not word.is_placeholder}
    known |= {name: word for word in words if word.is_placeholder for name in names}
    word = known.get(name)
    if word is not None and word.has_percentage == bool(has_value):
        return Condition(word=name, share=_share(text, value) if has_value else None)
    if not has_value and _is_number(text):
        return Condition(word=words[0].name, share=_share(text, text))
    forms = [word.form for word in words]
    raise UsageError(
        f"`--fail-on` must be PERCENT or one of {', '.join(forms)}, but got {text}",
        hint=f"names: {', '.join(names)}" if names else f"flatout {command} --help",
    )


def _is_number(text: str) -> bool:
    try:
        float(text.rstrip("% "))
    except ValueError:
        return False
    return True


def _share(text: str, value: str) -> float:
    try:
        percentage = float(value.rstrip("% "))
    except ValueError:
        percentage = math.nan
    if not 0 <= percentage <= MOST_PERCENT:
        raise UsageError(f"`--fail-on` must have a percentage from 0 to {MOST_PERCENT:,.0f}, but got {text}")
    return percentage / 100


def help_of(command: str) -> str:
    """Return the help of a command's `--fail-on`."""
    forms = ", ".join(word.form for word in WORDS[command])
    return f"Exit with code 1 if this holds: {forms}; PERCENT alone is {WORDS[command][0].form}. Repeatable."
