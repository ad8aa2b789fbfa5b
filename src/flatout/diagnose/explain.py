"""Turn a rule's docstring into the explanation of its finding, by heading."""

from __future__ import annotations

import inspect

import msgspec

from flatout.diagnose.rules import RULES
from flatout.errors import InputError

HEADINGS = ("What it means", "Why it costs", "Evidence", "Change to try", "When this is wrong")


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    name: str
    summary: str
    sections: dict[str, str]  # by heading, in their order


class Explanations(msgspec.Struct, frozen=True, kw_only=True):
    findings: tuple[Explanation, ...]


def explanation(name: str) -> Explanation:
    """Return the explanation of the finding with this name or code. Raises InputError if there is none."""
    for rule in RULES:
        if name.lower() in (rule.NAME, rule.CODE.lower()):
            return _parse(rule.CODE, rule.NAME, inspect.cleandoc(rule.__doc__ or ""))
    raise InputError(
        f"there is no finding named {name}", hint=f"names: {', '.join(sorted(rule.NAME for rule in RULES))}"
    )


def explanations() -> dict[str, str]:
    """Return the section "When this is wrong" of each finding by its name, for reports."""
    return {rule.NAME: explanation(rule.NAME).sections["When this is wrong"].replace("\n", " ") for rule in RULES}


def listed() -> list[tuple[str, str]]:
    """Return the name and summary of every finding, sorted by code."""
    found = sorted((explanation(rule.NAME) for rule in RULES), key=lambda e: e.code)
    return [(e.name, e.summary) for e in found]


def _parse(code: str, name: str, text: str) -> Explanation:
    summary, _, rest = text.partition("\n\n")
    sections: dict[str, str] = {}
    heading = ""
    for line in rest.splitlines():
        if line and not line.startswith(" "):
            heading = line.strip()
            sections[heading] = ""
        elif heading:
            sections[heading] += line.removeprefix("    ") + "\n"
    return Explanation(
        code=code,
        name=name,
        summary=" ".join(summary.split()),
        sections={heading: body.strip("\n") for heading, body in sections.items()},
    )
