"""Estimate the class of a failure of which no entry of `failures.toml` says much, by what it shares with known texts.

In: the type of an exception and its message without names of data, or lines of a log; and the class that a weak rule
gives, if one does. Out: the most likely class, whether another start helps, and how likely that is. What counts of a
text are its words, the groups of words of `failures.toml` (it refuses, it was late, about a peer), codes of errors,
the group of the exception's type, and the severity of a line. `failure_words.json` has a weight for each of them and
each class. The weights were fitted to the texts in `tests/data/failures` and the phrases of `failures.toml` and
`failures_of_programs.toml` by `benchmarks/failure_words.py`, which also says how often the estimate is right for texts
that it was not fitted to.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Literal

import msgspec

from flatout.catalog.failures import FailureClass, Phase, Restart, codes_in, groups_of_type, word_groups_in
from flatout.catalog.log_prefixes import without_prefixes

Label = tuple[FailureClass, Restart]
LEAST_LIKELY_ELSEWHERE = 0.9  # an estimate leaves a host at once only if it is at least so likely

_FILE = Path(__file__).with_name("failure_words.json")
# What a weak rule says is so much more likely than by the words alone, as a difference of logarithms: the best of five
# values in 430 texts, where 1 to 2 are nearly as good.
_OF_RULES = 1.5
# The length, in hundredths, up to which the words of a text count as they are: few words say little. Those of a longer
# text are scaled to length 1.
_LEAST_LENGTH = 600
_STEM = 6  # characters of a word that count, so that `fail`, `failed` and `failure` mostly are one word
_MAX_WORDS = 400
_SUBJECTS = ("drivers", "file-servers", "kernel", "peers", "services")  # groups of words: what a line is about
_STATEMENTS = ("fails", "refuses", "late", "gone")  # and what it says of it
_HEX = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,}\b", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]+")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
# A number counts only after a word that says what it is: `exit code 137`, `status 503`, `signal 9`.
_CODE = re.compile(
    r"\b(?:code|status|statuscode|errno|error|signal|exit|exitcode|exited|xid|http|rc|ret|failure|returned|response"
    r"|detected)\b\W{0,6}(?:(?:with|by|is|exit|code|status|error|number|on|signal)\W{1,3}){0,3}-?(\d{1,4})\b",
    re.IGNORECASE,
)
_COMMON = (
    "a an the of to in on for by is was were be been with from at as and or this that it its you your please if has"
    " have had are will"
)
_UNCOUNTED = frozenset(_COMMON.split())


class WordEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The most likely class of a text."""

    failure_class: FailureClass
    restart: Restart
    likelihood: float


class _Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For each label, a class and whether another start helps: how much each word speaks for it, in hundredths."""

    source: str
    labels: list[tuple[FailureClass | Literal["healthy"], Restart]]  # `healthy`: a line of a healthy job
    bias: list[int]
    # How much a word counts, and then pairs of the number of a label and a weight, one after the other.
    words: dict[str, list[int]]


def estimate(exception: str, message: str, phase: Phase | None, said: Label | None = None) -> WordEstimate:
    """Return the most likely class of a text. `exception` is the type, or empty for lines of a log.

    `said` is what a weak rule says of the text. Where it is not sure enough that this host is at fault, it says `yes`:
    start again, and elsewhere at the second time.
    """
    labels, scores = _weights().labels, _scores(words_of(exception, message, phase))
    scores = [score + _OF_RULES * (label == said) for label, score in zip(labels, scores, strict=True)]
    best = max(range(len(scores)), key=scores.__getitem__)
    likelihood = 1 / sum(math.exp(score - scores[best]) for score in scores)
    name, restart = labels[best]
    failure_class: FailureClass = "unknown" if name == "healthy" else name
    if restart == "elsewhere" and likelihood < LEAST_LIKELY_ELSEWHERE:
        restart = "yes"
    return WordEstimate(failure_class=failure_class, restart=restart, likelihood=likelihood)


def words_of(exception: str, message: str, phase: Phase | None) -> set[str]:
    """Return what counts of a text: its words, pairs of words that follow each other, and what the text is."""
    lines = [without_prefixes(line) for line in message.splitlines()]
    text = "\n".join(said for _, said in lines)
    stems = [word.lower()[:_STEM] for word in _split(text)[:_MAX_WORDS]]
    counting = [stem for stem in stems if len(stem) > 1 and stem not in _UNCOUNTED]
    pairs = {f"{first} {second}" for first, second in pairwise(counting)}
    severities = {f"severity={severity}" for severity, _ in lines if severity}
    numbers = {f"code={number}" for number in _CODE.findall(text)}
    return {*counting, *pairs, *severities, *numbers, *codes_in(text), *_about(text), *_of_type(exception, phase)}


def _of_type(exception: str, phase: Phase | None) -> set[str]:
    stems = {word.lower()[:_STEM] for word in _split(exception)}
    groups = groups_of_type(exception)
    origin = "exception" if exception else "line"
    return {
        f"type={exception}",
        f"of={origin}",
        f"at={phase} {origin}",
        *stems,
        *(f"type:{stem}" for stem in stems),
        *(f"type@{group}" for group in groups),
        *(f"type@{group} at={phase}" for group in groups),
    }


def _about(text: str) -> set[str]:
    """Return which groups of words the text has, and each subject together with each statement."""
    groups = word_groups_in(text)
    both = product(groups.intersection(_SUBJECTS), groups.intersection(_STATEMENTS))
    return {f"@{group}" for group in groups} | {f"@{subject} {statement}" for subject, statement in both}


def _split(text: str) -> list[str]:
    """Return the words of a text; `ConnectionError` has two."""
    return _WORD.findall(_CAMEL.sub(" ", _HEX.sub(" ", text)))


def _scores(words: set[str]) -> list[float]:
    weights = _weights()
    found = [numbers for word in words if (numbers := weights.words.get(word))]
    length = length_of([counts for counts, *_ in found])
    scores = [bias / 100 for bias in weights.bias]
    for counts, *pairs in found:
        for label, weight in zip(pairs[::2], pairs[1::2], strict=True):
            scores[label] += counts / length * weight / 100
    return scores


def length_of(counts: list[int]) -> float:
    """Return by what the importances of a text's words are divided."""
    return max(_LEAST_LENGTH, math.sqrt(sum(count**2 for count in counts)))


@cache
def _weights() -> _Weights:
    return msgspec.convert(json.loads(_FILE.read_text(encoding="utf-8")), _Weights)
