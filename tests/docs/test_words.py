"""The words of docs/words.toml that Flatout no longer uses are nowhere that a person reads."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.syntax import nodes

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src/flatout"
WORDS = tomllib.loads((ROOT / "docs/words.toml").read_text())["word"]

# Pages about other things than today's Flatout: what was released, and the old words themselves.
NOT_OURS = {"docs/changelog.md"}
BARE_OF = re.compile(r"Of (a|an|the|each|all|several|one|what|how|so|its|this|those|these|[a-z]+s\b)")
# A format field and an inline code span name things, whose names may hold an old word.
NAMES_IN_TEXT = re.compile(
    r"`[^`\n]*`|\{\{.*?\}\}|\{%.*?%\}|<[^>\n]*>|https?://\S+|\]\([^)]*\)|^\s*```.*?^\s*```", re.S | re.M
)

# A string of any kind hides a # in it. The longer quotes come first.
STRING_OR_COMMENT = re.compile(
    r"""'''(?:\\.|[^\\])*?'''|\"""(?:\\.|[^\\])*?\"""|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\#[^\n]*""", re.S
)
# What every docstring looks like that `BARE_OF` matches: only files with one of these are parsed.
PERHAPS_BARE_OF = re.compile(r"""["'][\s\\]*Of """)


class Prose(NamedTuple):
    """A text that a person reads."""

    path: str
    line: int
    text: str


def python_prose(path: Path) -> Iterator[Prose]:
    """Yield the docstrings, sentences and comments of a module. A string without a space is a key or a name."""
    name, source = str(path.relative_to(ROOT)), path.read_text()
    for node in nodes(source):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield Prose(name, node.lineno, "".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield Prose(name, node.lineno, node.value)
    for offset, comment in comments(source):
        yield Prose(name, 1 + source.count("\n", 0, offset), comment)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the offset and the text of each comment. `tokenize` says the same, and takes seconds for all modules."""
    for match in STRING_OR_COMMENT.finditer(source):
        if match[0].startswith("#"):
            yield match.start(), match[0]


def all_prose() -> Iterator[Prose]:
    """Yield all that a person reads: the package's Python files and templates, the pages, the README."""
    for path in sorted(SOURCE.rglob("*.py")):
        yield from python_prose(path)
    pages = [*sorted(SOURCE.rglob("*.j2")), *sorted((ROOT / "docs").rglob("*.md"))]
    pages += [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.exists()]
    for path in pages:
        if str(path.relative_to(ROOT)) not in NOT_OURS:
            yield Prose(str(path.relative_to(ROOT)), 1, path.read_text())


def _forms(word: dict[str, Any]) -> str:
    return f"(?:{word.get('pattern', re.escape(word['old']))})"


def _whole_words(forms: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w-])(?:{forms})(?![\w-])", re.IGNORECASE)


PATTERNS = [(_whole_words(_forms(word)), word.get("keep", ())) for word in WORDS]
ANY_OLD_WORD = _whole_words("|".join(_forms(word) for word in WORDS))


def old_words_in(text: str) -> list[tuple[str, int]]:
    """Return each old word in `text` with its offset."""
    text = NAMES_IN_TEXT.sub(lambda match: "`" + "\n" * match[0].count("\n") + "`", text)
    if not ANY_OLD_WORD.search(text):
        return []
    matches = []
    for pattern, keep in PATTERNS:
        readable = text
        for phrase in keep:
            readable = re.sub(re.escape(phrase), lambda match: "_" * len(match[0]), readable, flags=re.IGNORECASE)
        matches += [(match[0], match.start()) for match in pattern.finditer(readable)]
    return matches


def violations() -> list[str]:
    """Return one line for each old word that a person can still read."""
    lines = []
    for prose in all_prose():
        for word, offset in old_words_in(prose.text):
            lines.append(f"{prose.path}:{prose.line + prose.text[:offset].count(chr(10))}: {word!r}")
    return sorted(set(lines))


def bare_of_docstrings() -> list[str]:
    """Return one line for each docstring that begins with "Of ..." and so has no subject."""
    lines = []
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text()
        if not PERHAPS_BARE_OF.search(source):
            continue
        for node in nodes(source):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if BARE_OF.match(ast.get_docstring(node) or ""):
                lines.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}")
    return lines


def test_old_words_are_gone() -> None:
    assert violations() == []


def test_no_docstring_begins_with_a_bare_of() -> None:
    assert bare_of_docstrings() == []


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("The rank is told to stop.", "told"),
        ("46 ms a step", "ms a step"),
        ("the job as it came", "as it came"),
        ("This is no JSON.", "is no"),
        ("512 in all.", "in all"),
        ("gains from 77 % on", "from 77 % on"),
    ],
)
def test_an_old_word_is_found(text: str, word: str) -> None:
    assert [match for match, _ in old_words_in(text)] == [word]


@pytest.mark.parametrize(
    "text",
    [
        "Two values are told apart.",
        "lead_in_s is a key, and so is `lead-in`.",
        "There is no JSON in it.",
        "in all ranks",
        "It is no longer there.",
    ],
)
def test_a_right_use_is_left_alone(text: str) -> None:
    assert old_words_in(text) == []


TRICKY = r"""
'''It's # no comment.'''  # This's "one".
a = "#" + '"'  # two
b = f'{a} \' # {a}'  # three: '
c = r"\\"  # four
d = '''
# a line of text
'''
# five
"""


def test_comments_are_those_that_the_tokenizer_sees() -> None:
    tokens = tokenize.generate_tokens(io.StringIO(TRICKY).readline)
    seen = [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
    found = [(1 + TRICKY.count("\n", 0, offset), comment) for offset, comment in comments(TRICKY)]
    assert found == seen
    assert len(found) == 5


@pytest.mark.parametrize(
    "docstring", ['"""Of a file."""', "'''\n  Of each rank.'''", '"Of all files."', '"""\\\nOf the step."""']
)
def test_no_file_with_a_bare_of_is_passed_over(docstring: str) -> None:
    assert BARE_OF.match(ast.get_docstring(ast.parse(docstring)) or "")
    assert PERHAPS_BARE_OF.search(docstring)
