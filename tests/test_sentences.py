"""Sentences are made to be read: no code of ours takes one apart to learn what happened.

What decides is a type (`cause`, `ended_by`, an enum, a flag), so that any sentence can be reworded. The rule is read
from the source: a method that takes a text apart must not be called on what is named as a sentence is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from tests.syntax import nodes
from tests.test_imports import modules

SENTENCES = {
    *("reason", "problem", "title", "effect", "note", "message", "sentence", "headline", "summary", "hint", "says"),
    *("way_out", "why", "why_ended", "why_cut", "invalid_reason", "problems", "reasons", "notes"),
}
TAKE_APART = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "split", "rsplit"),
    *("replace", "find", "rfind", "index"),
}
# Texts of others, and layout.
ALLOWED = {
    ("report.doctor_hosts_html", 'difference.reason.replace(domain, "")'),  # shortens the names of hosts for the page
    ("schedule.live.decide", "node.reason.startswith(FLATOUT_MARK)"),  # the mark of a drain, which Slurm keeps for us
}
NOTES_OF_OTHERS = "plan.runs"  # reads the notes of public benchmarks


def parsed_sentences(source: str) -> Iterator[str]:
    """The expressions in `source` that take a sentence apart or look for words in one."""
    for node in nodes(source):
        match node:
            case ast.Call(func=ast.Attribute(attr="split"), args=[]):
                continue  # only white space
            case ast.Call(func=ast.Attribute(value=text, attr=method)) if method in TAKE_APART and _is_sentence(text):
                yield ast.get_source_segment(source, node) or ""
            case ast.Compare(left=ast.Constant(value=str()), ops=[ast.In() | ast.NotIn()], comparators=[text]):
                if _is_sentence(text):
                    yield ast.get_source_segment(source, node) or ""
            case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq()], comparators=[right]):
                for text, other in ((left, right), (right, left)):
                    if _is_sentence(text) and isinstance(other, ast.Constant) and " " in str(other.value):
                        yield ast.get_source_segment(source, node) or ""


def _is_sentence(node: ast.AST) -> bool:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SENTENCES or name.rpartition("_")[2] in SENTENCES
        case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id="error" | "end")]):
            return True
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name in SENTENCES or (name.endswith(("_sentence", "_text", "_words")) and name != "read_text")
        case ast.Subscript(value=value):
            return _is_sentence(value)
    return False


def test_no_sentence_is_taken_apart() -> None:
    sources = {name: path.read_text() for name, path in modules().items() if name != NOTES_OF_OTHERS}
    found = {(name, text) for name, source in sources.items() for text in parsed_sentences(source)}
    assert found == ALLOWED


@pytest.mark.parametrize(
    "source",
    [
        'is_cut = result.why_ended.startswith("the budget")',
        'title = finding.title.replace(" a step", " in all")',
        'is_told = "trace" in problem',
        'is_void = pair.invalid_reason == "another process was busy"',
        'if "entities" in str(error): pass',
        'value, _, around = predicted_text(one).partition(" (")',
        'first = recording.problems[0].problem.split(":")',
        'line = f"{way_out.removesuffix(end)}, and more"',
    ],
)
def test_the_rule_sees_a_sentence_that_is_taken_apart(source: str) -> None:
    assert len(list(parsed_sentences(source))) == 1


@pytest.mark.parametrize(
    "source",
    ['name.removeprefix("rank")', 'path.endswith(".json")', 'reason = f"{reason}; {more}"', 'kind == "out of memory"'],
)
def test_the_rule_leaves_names_and_new_sentences_alone(source: str) -> None:
    assert list(parsed_sentences(source)) == []
