"""Plain data as block YAML. Every text is written as JSON does, which is valid YAML, so that nothing is misread."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

Value = str | int | float | bool | None | Sequence["Value"] | Mapping[str, "Value"]
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
_MEANS_SOMETHING = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def yaml_text(value: Mapping[str, Value]) -> str:
    return "\n".join(_mapping(value, "")) + "\n"


def _mapping(value: Mapping[str, Value], indent: str) -> Iterator[str]:
    for name, each in value.items():
        if isinstance(each, Mapping) and each:
            yield f"{indent}{_scalar(name)}:"
            yield from _mapping(each, indent + "  ")
        elif isinstance(each, Sequence) and not isinstance(each, str) and each:
            yield f"{indent}{_scalar(name)}:"
            yield from _sequence(each, indent)
        else:
            yield f"{indent}{_scalar(name)}: {_scalar(each)}"


def _sequence(value: Sequence[Value], indent: str) -> Iterator[str]:
    for each in value:
        if isinstance(each, Mapping) and each:
            first, *rest = _mapping(each, indent + "  ")
            yield f"{indent}- {first.strip()}"
            yield from rest
        else:
            yield f"{indent}- {_scalar(each)}"


def _scalar(value: Value) -> str:
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _MEANS_SOMETHING:
        return value
    return json.dumps(value)
