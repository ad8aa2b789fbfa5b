"""Mask texts about one job, with the secrets of its environment and its command also where nothing announces them.

A message such as `login failed: hunter2-wandb` names no secret; the value is known from `WANDB_API_KEY`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

from flatout.secrets.command import masked_command, masked_word
from flatout.secrets.names import SecretKind, secret_kind
from flatout.secrets.shapes import MASK
from flatout.secrets.text import masked_text
from flatout.secrets.values import is_secret_value

# A shorter value is also part of ordinary words, and so is a word of letters alone that is not long.
_LEAST, _LEAST_WORD = 6, 12
_MOST_VALUES = 200


def masked_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Mask the values of variables that hold secrets, and the secrets within the others."""
    return {name: masked_word(f"{name}={value}")[len(name) + 1 :] for name, value in environment.items()}


class Masker:
    """Masks texts about a job: `text` is for any string, `words` for a command."""

    def __init__(self, environment: Mapping[str, str], command: Sequence[str] = ()) -> None:
        values = {*_values_of_environment(environment), *_values_of_command(command)}
        forms = {form for value in values if _is_distinct(value) for form in _forms(value)}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))[:_MOST_VALUES]
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        masked = masked_text(text)
        return self._known.sub(MASK, masked) if self._known is not None else masked

    def words(self, command: Sequence[str]) -> tuple[str, ...]:
        return tuple(map(self.text, masked_command(command)))


def _values_of_environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        kind = secret_kind(name)
        if kind is not None and kind is not SecretKind.PERHAPS and is_secret_value(kind, name, value):
            yield value


def _values_of_command(command: Sequence[str]) -> Iterator[str]:
    """Return the parts of the words that `masked_command` masks."""
    for word, masked in zip(command, masked_command(command), strict=True):
        before, mask, after = masked.partition(MASK)
        if mask and word.startswith(before) and word.endswith(after) and MASK not in after:
            yield word[len(before) : len(word) - len(after)]


def _is_distinct(value: str) -> bool:
    return len(value) >= (_LEAST_WORD if value.isalpha() and value.islower() else _LEAST) and not value.isspace()


def _forms(value: str) -> tuple[str, ...]:
    """Return the value as it stands in texts, JSON, a shell's commands and URLs."""
    return (value, json.dumps(value)[1:-1], shlex.quote(value).strip("'"), quote(value, safe=""))
