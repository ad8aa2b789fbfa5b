"""Estimate the class of a failure that no entry of `failures.toml` fits, by the words that it shares with known texts.

In: the type of an exception and its message without names of data, or lines of a log. Out: the most likely class,
whether another start helps, and how likely that is. `failure_words.json` has a weight for each word and class. It was
fitted to the texts in `tests/data/failures` by `benchmarks/failure_words.py`, which also says how often it is right.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec

from flatout.catalog.failures import FailureClass, Phase, Restart

_FILE = Path(__file__).with_name("failure_words.json")
_STEM = 6  # characters of a word that count, so that `fail`, `failed` and `failure` mostly are one word
_MAX_WORDS = 400
_HEX = re.compile(r"0x[0-9a-f]+", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]+|\d+")
_CAMEL = re.compile(r"([a-z])([A-Z])")


class WordEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """The most likely class of a text."""

    failure_class: FailureClass
    restart: Restart
    likelihood: float


class _Weights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """For each label, a class and whether another start helps: how much each word speaks for it, in hundredths."""

    source: str
    labels: list[tuple[FailureClass, Restart]]
    bias: list[int]
    # How much a word counts, and then pairs of the number of a label and a weight, one after the other.
    words: dict[str, list[int]]


def estimate(exception: str, message: str, phase: Phase | None) -> WordEstimate:
    """Return the most likely class of a text. `exception` is the type, or empty for lines of a log."""
    weights = _weights()
    found = [numbers for word in words_of(exception, message, phase) if (numbers := weights.words.get(word))]
    length = math.sqrt(sum(counts**2 for counts, *_ in found)) or 1.0
    scores = [bias / 100 for bias in weights.bias]
    for counts, *pairs in found:
        for label, weight in zip(pairs[::2], pairs[1::2], strict=True):
            scores[label] += counts / length * weight / 100
    best = max(range(len(scores)), key=scores.__getitem__)
    total = sum(math.exp(score - scores[best]) for score in scores)
    failure_class, restart = weights.labels[best]
    return WordEstimate(failure_class=failure_class, restart=restart, likelihood=1 / total)


def words_of(exception: str, message: str, phase: Phase | None) -> set[str]:
    """Return what counts of a text: its words, pairs of words that follow each other, its type, and when it came."""
    text = _CAMEL.sub(r"\1 \2", _HEX.sub("#", f"{exception} : {message}"))
    stems = ["#" if word.isdigit() else word.lower()[:_STEM] for word in _WORD.findall(text)[:_MAX_WORDS]]
    pairs = {f"{first} {second}" for first, second in pairwise(stems)}
    origin = "exception" if exception else "line"
    return {*stems, *pairs, f"type={exception}", f"of={origin}", f"at={phase} {origin}"}


@cache
def _weights() -> _Weights:
    return msgspec.convert(json.loads(_FILE.read_text(encoding="utf-8")), _Weights)
