"""Write plain data as block YAML.

Strings are quoted as in JSON, which is valid YAML, so that they cannot be misread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_SURROGATES = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
_KEYWORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def yaml_text(value: Mapping[str, Value]) -> str:
    return "\n".join(_mapping(value, "")) + "\n"


def _mapping(value: Mapping[str, Value], indent: str) -> Iterator[str]:
    for name, each in value.items():
        if isinstance(each, Mapping) and each:
            yield f"{indent}{_scalar(name)}:"
            yield from _mapping(each, indent + "  ")
        elif _is_list(each):
            yield f"{indent}{_scalar(name)}:"
            yield from _sequence(each, indent)
        else:
            yield f"{indent}{_scalar(name)}: {_scalar(each)}"


def _is_list(value: Value) -> TypeGuard[Sequence[Value]]:
    """Whether the value is a sequence with items; an empty one is written as a scalar."""
    return isinstance(value, Sequence) and not isinstance(value, str) and bool(value)


def _sequence(value: Sequence[Value], indent: str) -> Iterator[str]:
    for each in value:
        if isinstance(each, Mapping) and each:
            first, *rest = _mapping(each, indent + "  ")
            yield f"{indent}- {first.strip()}"
            yield from rest
        else:
            yield f"{indent}- {_scalar(each)}"


def _scalar(value: Value) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _KEYWORDS:
        return value
    return _SURROGATES.sub(_code_point, json.dumps(value))


def _code_point(pair: re.Match[str]) -> str:
    """Return the escape of one character. JSON writes two of UTF-16 beyond U+FFFF, which YAML refuses."""
    high, low = int(pair[2], 16), int(pair[3], 16)
    return f"{pair[1]}\\U{0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00:08x}"
