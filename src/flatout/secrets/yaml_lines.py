"""Mask the secrets in YAML whose name is on another line than the value, or above it.

In: a text of several lines, of any kind. Out: the text with these values masked:

    password: >-            api_keys:            wandb:
      hunter2                 - k9Xv2              key: k9Xv2abc

A value with spaces is taken for prose and stays.
"""

from __future__ import annotations

import re

from flatout.secrets.names import SecretKind, holds_a_key, secret_kind
from flatout.secrets.shapes import MASK
from flatout.secrets.values import is_secret_value

_ENTRY = re.compile(
    r"(?P<indent> {0,80}(?:- {1,4})?)(?P<mark>[\"']?)(?P<name>[A-Za-z_][\w.-]{0,80})(?P=mark):(?P<gap>[ \t]{1,40}|$)"
    r"(?P<value>.{0,4000})"
)
_BLOCK = re.compile(r"[|>][+-]?\d?[+-]?\s*(?:#.*)?")
_SCALAR = re.compile(r"(?P<mark>[\"']?)(?P<value>[^\s\"']{1,4000})(?P=mark)\s*(?:#.*)?$")
_BEGIN = re.compile(r"(?P<indent> {0,80})(?P<dash>- {1,4})?")
_LEAST_KEY = 8


class _Open:
    """An entry whose value follows on other lines."""

    def __init__(self, name: str, indent: int) -> None:
        self.name = name
        self.indent = indent
        kind = secret_kind(name)
        self.kind = kind if kind is not SecretKind.PERHAPS else None


def masked_yaml(text: str) -> str:
    """Mask the values below the names of secrets; other lines stay as they are."""
    lines = text.split("\n")
    above: list[_Open] = []
    for number, line in enumerate(lines):
        entry = _ENTRY.fullmatch(line)
        if entry is not None:
            lines[number] = _entered(entry, above)
        elif above and line.strip():
            lines[number] = _continued(line, above)
    return "\n".join(lines)


def _entered(entry: re.Match[str], above: list[_Open]) -> str:
    """Return the line of an entry, with its value masked if it is the key of a service; note one without a value."""
    line, indent = entry[0], len(entry["indent"])
    _close(above, indent)
    value = entry["value"].strip()
    if not value or _BLOCK.fullmatch(value):
        above.append(_Open(entry["name"], indent))
        return line
    is_key_of_a_service = entry["name"].lower() == "key" and bool(above) and holds_a_key(above[-1].name)
    scalar = _SCALAR.match(line, entry.start("value"))
    if not is_key_of_a_service or scalar is None or not _is_key(scalar["value"]):
        return line
    return line[: scalar.start("value")] + MASK + line[scalar.end("value") :]


def _is_key(value: str) -> bool:
    has_digit = any(map(str.isdigit, value))
    return has_digit and len(value) >= _LEAST_KEY and is_secret_value(SecretKind.KEY, "key", value)


def _continued(line: str, above: list[_Open]) -> str:
    """Return a line below an entry without a value, masked if it is the value, or one of a list of values."""
    begin = _BEGIN.match(line)
    assert begin is not None
    is_item = begin["dash"] is not None
    _close(above, len(begin["indent"]) + is_item)  # the items of a list may stand below the first letter of its name
    scalar = _SCALAR.match(line, begin.end())
    if not above or above[-1].kind is None or scalar is None:
        return line
    value = scalar["value"]
    is_name = is_item and not any(map(str.isdigit, value))  # the name of a secret, as in a list of Docker Compose
    if is_name or not is_secret_value(above[-1].kind, above[-1].name, value):
        return line
    return line[: scalar.start("value")] + MASK + line[scalar.end("value") :]


def _close(above: list[_Open], indent: int) -> None:
    """Leave the entries that are not around a line with this indent."""
    while above and above[-1].indent >= indent:
        above.pop()
