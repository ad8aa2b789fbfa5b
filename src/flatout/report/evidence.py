"""Print the evidence of a finding as labelled texts. The end of a key gives the unit of its value.

Known endings are those in `_UNITS`; keys with `num_` are counts. A part's name is shown as its label, ranks as ranges,
and a missing value as "unknown". Nested values take the unit of their key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flatout import units
from flatout.report.parts import BEFORE_WINDOW, PART_LABELS, part_label

MOST_ITEMS = 8

_UNITS: tuple[tuple[str, Callable[[float], str], str], ...] = (
    ("_bytes_per_s", units.bytes_per_s, ""),
    ("_flops_per_s", units.flops_per_s, ""),
    ("_bytes_per_step", units.num_bytes, " per step"),
    ("_bytes", units.num_bytes, ""),
    ("_s_per_step", units.seconds, " per step"),
    ("_per_s", lambda value: f"{units.number(value)}/s", ""),
    ("_s", units.seconds, ""),
    ("_ns", lambda value: units.seconds(value / units.NS_PER_S), ""),
    ("_share_of_step", units.percent, ", share of step"),
    ("_share", units.percent, " share"),
    ("_ratio", lambda value: f"{units.number(value)}x", " ratio"),
)
_TRUTH_WORDS = {True: "yes", False: "no", None: "unknown"}
_WHOLE_KEYS = {"num_bytes": "size", "bytes": "size", "bytes_per_s": "rate"}


def evidence_texts(evidence: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the label and the printed value of each entry of the evidence, in order."""
    return [(_label(key), _text(key, value)) for key, value in evidence.items()]


def _unit(key: str) -> tuple[str, Callable[[float], str], str] | None:
    return next((unit for unit in _UNITS if key.endswith(unit[0]) or key == unit[0][1:]), None)


def _label(key: str) -> str:
    if key in PART_LABELS or key == BEFORE_WINDOW:
        return part_label(key)
    if key in _WHOLE_KEYS:
        return _WHOLE_KEYS[key]
    unit = _unit(key)
    if unit and key.endswith(unit[0]):
        key = key.removesuffix(unit[0])
        return _label(key) + unit[2]
    return key.removeprefix("num_").replace("_", " ")


def _item(name: str, text: str) -> str:
    return f"{text} (rank {name})" if name.isdecimal() else f"{_label(name)} {text}"


def _text(key: str, value: Any, format_number: Callable[[float], str] = units.number, between: str = ", ") -> str:
    unit = _unit(key)
    if unit is not None:
        format_number = unit[1]
    if value is None or isinstance(value, bool):
        return _TRUTH_WORDS[value]
    if isinstance(value, int | float):
        return _rank_or_number(key, value, format_number)
    if isinstance(value, Mapping):
        items = [_item(str(name), _text(str(name), item, format_number, between=" / ")) for name, item in value.items()]
        return _shortened(items)
    if isinstance(value, str) or not isinstance(value, Sequence):
        return _label_of_part(str(value))
    if _are_ranks(key, value):
        return units.rank_ranges(value)
    return _shortened([_text(key, item, format_number) for item in value], between)


def _label_of_part(text: str) -> str:
    if text in PART_LABELS or text == BEFORE_WINDOW:
        return part_label(text)
    return text


def _are_ranks(key: str, values: Sequence[Any]) -> bool:
    return bool(values) and _names_ranks(key) and all(isinstance(value, int) for value in values)


def _rank_or_number(key: str, value: float, format_number: Callable[[float], str]) -> str:
    if not math.isfinite(value):
        return "unknown"
    names_steps = key in ("step", "steps") or key.endswith(("_step", "_steps"))
    is_label = _names_ranks(key) or (names_steps and not key.startswith("num_"))
    if is_label and isinstance(value, int):
        return str(value)  # a rank or a step is a name: 1234, not 1,234
    return format_number(value)


def _names_ranks(key: str) -> bool:
    return key in ("rank", "ranks") or (key.endswith(("_rank", "_ranks")) and not key.startswith("num_"))


def _shortened(items: list[str], between: str = ", ") -> str:
    if not items:
        return "none"
    if len(items) > MOST_ITEMS:
        return f"{between.join(items[:MOST_ITEMS])}{between}... ({len(items):,} in total)"
    return between.join(items)
