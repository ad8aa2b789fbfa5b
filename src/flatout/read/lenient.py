"""Recover events from text that is not valid JSON, or whose fields have unexpected types.

In: the text of some events, without the brackets around them. Out: the events, with decimal times. Repairs and losses
are counted by the keys of `quality.DAMAGE`. There are three attempts, each slower and more tolerant than the previous:

1. Valid JSON with odd types (`"ts": "12.5"`, entries that are not objects): decode without types and convert.
2. Characters that JSON forbids (control characters, bad UTF-8, `inf`, `nan`): replace them and decode again.
3. Anything else: cut the text where events begin, decode each event alone, and read the fields of those that still
fail.
"""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec

from flatout.read.boundaries import event_heads
from flatout.read.schema import UNREADABLE, Arguments, ExactEvent

_decode = msgspec.json.Decoder(float_hook=Decimal).decode

_SPACES = b"\t\n\r"
_CONTROL = bytes(code for code in range(32) if code not in _SPACES)
# A control character is at most white space outside strings, and not allowed inside strings.
_CONTROL_TO_SPACE = bytes(max(code, 32) for code in range(256))
_NO_NUMBER = re.compile(rb"([:\[,]\s*)[+-]?(?:inf(?:inity)?|nan)(?=\s*[,}\]])", re.IGNORECASE)
# The last of an odd number of backslashes, before a character that none escapes.
_BAD_ESCAPE = re.compile(rb'(?<!\\)((?:\\\\)*+)\\(?!["\\/bfnrtu])')
# Possessive, because Python's engine would note each character of a text to return to it: 170 bytes for one.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TEXT = re.compile(_STRING)
_TRAILING_COMMA = re.compile(rb",(\s*[}\]])")
_MAX_JOINED = 16  # pieces into which a list of objects inside one event may have been cut

_ARGUMENT_OF_KEY = dict(zip(Arguments.__struct_encode_fields__, Arguments.__struct_fields__, strict=True))
_FIELD = re.compile(
    rb'"('
    + b"|".join(re.escape(key.encode()) for key in ("ph", "cat", "pid", "tid", "ts", "dur", *_ARGUMENT_OF_KEY))
    + rb')"\s*:\s*('
    + _STRING
    + rb"|-?[0-9][-+.0-9eE]*)"
)
# A name with quotes in it: it ends at the quote before another key of an event, or before the event's end.
_NAME = re.compile(rb'"name"\s*:\s*"(.*?)"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}\s*$)', re.DOTALL)
_TOP_LEVEL = ("ph", "cat", "name", "pid", "tid", "ts", "dur")


def decode(text: bytes, damage: Counter[str]) -> list[ExactEvent | None]:
    """Return the events; None stands for each event of another phase."""
    return [_event(value, damage) for value in objects(text, damage)]


def objects(text: bytes, damage: Counter[str]) -> list[dict[str, Any]]:
    """Return the events of all phases as decoded."""
    try:
        values = _decode(b"".join((b"[", text, b"]")))
    except UNREADABLE:
        text = _repair_characters(text, damage)
        try:
            values = _decode(b"".join((b"[", text, b"]")))
        except UNREADABLE:
            values = _decode_one_by_one(text, damage)
    found = [value for value in values if isinstance(value, dict)]
    damage["no object"] += len(values) - len(found)
    return found


def _repair_characters(text: bytes, damage: Counter[str]) -> bytes:
    num_control = len(text) - len(text.translate(None, delete=_CONTROL))
    repaired = text.translate(_CONTROL_TO_SPACE)
    replaced = repaired.decode("utf-8", errors="replace")
    num_bad_bytes = replaced.count("\ufffd") - repaired.count("\ufffd".encode())
    if num_bad_bytes:
        repaired = replaced.encode()
    repaired, num_no_numbers = _NO_NUMBER.subn(rb"\1null", repaired)
    repaired = re.sub(rb",(\s*)\Z", rb"\1", repaired)
    damage["control character"] += num_control
    damage["bad utf-8"] += num_bad_bytes
    damage["no number"] += num_no_numbers
    return repaired


def _decode_one_by_one(text: bytes, damage: Counter[str]) -> list[Any]:
    heads = event_heads(text)
    if text[: heads[0] if heads else len(text)].strip():
        damage["unreadable"] += 1  # the rest of an event whose beginning is missing
    ends = [*heads[1:], len(text)]
    values: list[Any] = []
    index = 0
    while index < len(heads):
        piece = text[heads[index] : ends[index]]
        value, num_joined = _whole(piece), 1
        if value is None and _is_open(piece):
            value, num_joined = _joined(text, heads[index], ends[index : index + _MAX_JOINED])
        if value is None:
            value = _repaired(piece) or (None if _is_unfinished(piece, text) else _visible_fields(piece))
            damage["unreadable" if value is None else "repaired"] += 1
        if value is not None:
            values.append(value)
        index += num_joined
    return values


def _whole(piece: bytes) -> Any:
    try:
        return _decode(piece[: piece.rfind(b"}") + 1])
    except UNREADABLE:
        return None


def _joined(text: bytes, start: int, ends: list[int]) -> tuple[Any, int]:
    """Return the event at `start`, joined with the pieces after it if they are a list of objects inside it."""
    for number, end in enumerate(ends, 1):
        piece = text[start:end]
        if not _is_open(piece):
            value = _whole(piece)
            return value, 1 if value is None else number
    return None, 1


def _repaired(piece: bytes) -> Any:
    """Decode the piece after repairing invalid escapes and commas before a closing bracket."""
    return _whole(_TRAILING_COMMA.sub(rb"\1", _BAD_ESCAPE.sub(rb"\1\\\\", piece)))


def _is_open(piece: bytes) -> bool:
    """Whether more braces open than close, ignoring those in strings (if quotes are damaged, all are counted)."""
    bare = _TEXT.sub(b"", piece)
    if b'"' in bare:
        bare = piece
    return bare.count(b"{") > bare.count(b"}")


def _is_unfinished(piece: bytes, text: bytes) -> bool:
    """Whether the piece is an event truncated by the end of the file, which can end within a number."""
    return text.endswith(piece) and _is_open(piece)


def _visible_fields(piece: bytes) -> dict[str, Any] | None:
    """Return the recognisable fields of a broken event; None without a phase or a time."""
    fields: dict[str, Any] = {}
    for key, value in _FIELD.findall(piece):
        try:
            fields.setdefault(key.decode(), _decode(value))
        except UNREADABLE:
            continue
    if "ph" not in fields or "ts" not in fields:
        return None
    name = _NAME.search(piece)
    fields["name"] = "" if name is None else name[1].decode("utf-8", errors="replace").replace('\\"', '"')
    fields["args"] = {key: value for key, value in fields.items() if key not in _TOP_LEVEL}
    return fields


def _event(value: dict[str, Any], damage: Counter[str]) -> ExactEvent | None:
    phase = value.get("ph", "X" if "dur" in value else None)
    if phase != "X":
        return None
    if isinstance(value.get("ts"), str) or isinstance(value.get("dur"), str):
        damage["text time"] += 1
    arguments = value.get("args")
    return ExactEvent(
        cat=_text(value.get("cat", "")),
        name=_text(value.get("name", "")),
        pid=_id(value.get("pid", 0)),
        tid=_id(value.get("tid", 0)),
        ts=_decimal(value.get("ts"), Decimal("nan")),
        dur=_decimal(value.get("dur"), Decimal(-1)),
        args=_arguments(arguments) if isinstance(arguments, dict) else Arguments(),
    )


def _arguments(values: dict[str, Any]) -> Arguments:
    fields: dict[str, Any] = {}
    for key, value in values.items():
        field = _ARGUMENT_OF_KEY.get(key)
        if field is None or value is None:
            continue
        if field in ("input_dims", "input_types"):
            fields[field] = msgspec.Raw(msgspec.json.encode(value))
        else:
            # Convert to a float, because int(Decimal("1e999999999")) would take forever.
            fields[field] = float(value) if isinstance(value, Decimal) else value
    return Arguments(**fields)


def _text(value: Any) -> str:
    return "" if value is None else str(value)


def _id(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


def _decimal(value: Any, default: Decimal) -> Decimal:
    """Convert a number, or a number written as text, to a Decimal."""
    if value is None or isinstance(value, bool):
        return default
    try:
        number = Decimal(value)
    except (InvalidOperation, TypeError, ValueError):
        return default
    return number if number.is_finite() else default
