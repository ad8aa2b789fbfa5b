"""Expand Slurm's compact lists of hosts, such as `n[1-3,07-09],login`."""

from __future__ import annotations

import re

_PART = re.compile(r"[^,\[\]]*(?:\[[^\]]*\][^,\[\]]*)*(?:,|$)")
_RANGE = re.compile(r"\[([0-9,-]*)\]")
_MAX_HOSTS = 1_000_000


def expanded(text: str) -> tuple[str, ...]:
    """Return the hosts in order. Raises ValueError if the text is not a compact list of hosts."""
    hosts: list[str] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match.end() == position:
            raise ValueError(f"not a list of hosts: {text[:80]!r}")
        hosts.extend(_one(match[0].rstrip(",")))
        position = match.end()
    return tuple(hosts)


def _one(text: str) -> list[str]:
    match = _RANGE.search(text)
    if match is None:
        if "[" in text or "]" in text:
            raise ValueError(f"not a list of hosts: {text[:80]!r}")
        return [text] if text else []
    numbers: list[str] = []
    for part in match[1].split(","):
        first, _, last = part.partition("-")
        low, high = int(first), int(last or first)
        if high - low >= _MAX_HOSTS:
            raise ValueError(f"too many hosts: {text[:80]!r}")
        numbers.extend(str(number).zfill(len(first)) for number in range(low, high + 1))
    rest = _one(text[match.end() :]) if match.end() < len(text) else [""]
    return [f"{text[: match.start()]}{number}{end}" for number in numbers for end in rest]
