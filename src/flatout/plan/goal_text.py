"""Parse the text of a goal, such as "100B tokens in 30 days", into a `Goal`."""

from __future__ import annotations

import re

from flatout.errors import UsageError
from flatout.records.goal import Goal

EXAMPLES = '--goal "100B tokens in 30 days", --goal "1.5T tokens for $2M", --goal "50k steps within 2 weeks"'
_SCALES = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}
_WORDS = {"thousand": "k", "million": "m", "billion": "b", "trillion": "t"}
_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365.25 / 12, "year": 365.25}
_NUMBER = r"(\d+(?:,\d{3})*(?:\.\d+)?(?:e[+]?\d+)?|\.\d+)\s*(k|m|b|t|thousand|million|billion|trillion)?"
_WORK = re.compile(rf"{_NUMBER}\s*(tokens?|steps?|sequences?|samples?)\b")
_TIME = re.compile(rf"(?:in|within)\s+{_NUMBER}\s*(hours?|days?|weeks?|months?|years?)\b")
_MONEY = re.compile(rf"(?:for|under)\s+(?:\$|usd\s*){_NUMBER}(?:\s*usd)?(?=\s|$)")
# The parts of a goal in the order in which they are searched: time can precede or follow money.
_PARTS = (("work", _WORK), ("time", _TIME), ("money", _MONEY), ("time", _TIME))


def parse_goal(text: str, *, global_batch: int, seq: int) -> Goal:
    """Return the goal. Raise UsageError if the text is not a goal."""
    words = " ".join(text.split())
    parts, rest = _split(words.lower())
    if "work" not in parts or rest:
        problem = f"`{rest}` in `{text}` is not understood" if rest else f"got `{text}`"
        raise UsageError(
            f"a goal is an amount of tokens or steps, then a time, a sum of money, or both, but {problem}",
            hint=f"for example: {EXAMPLES}",
        )
    tokens_per_unit = {"token": 1, "step": global_batch * seq, "sequence": seq, "sample": seq}
    tokens = _value(parts["work"]) * tokens_per_unit[_unit(parts["work"])]
    days = _value(parts["time"]) * _DAYS[_unit(parts["time"])] if "time" in parts else None
    usd = _value(parts["money"]) if "money" in parts else None
    for name, value in (("amount", tokens), ("time", days), ("sum", usd)):
        if value is not None and not 0 < value < 1e30:
            raise UsageError(f"the {name} of a goal must be above 0, but got `{text}`", hint=f"for example: {EXAMPLES}")
    return Goal(text=words, tokens=tokens, days=days, usd=usd)


def _split(text: str) -> tuple[dict[str, re.Match[str]], str]:
    """Return the parts at the start of the text, and the rest of it."""
    parts: dict[str, re.Match[str]] = {}
    for name, pattern in _PARTS:
        match = pattern.match(text)
        if match and name not in parts:
            parts[name] = match
            text = text[match.end() :].strip(" ,")
    return parts, text


def _value(part: re.Match[str]) -> float:
    scale = part[2] or ""
    return float(part[1].replace(",", "")) * _SCALES[_WORDS.get(scale, scale)]


def _unit(part: re.Match[str]) -> str:
    return part[3].rstrip("s")
