"""Where one event ends and the next begins, in text too large to parse at once.

A boundary is a guess by the text around it. A wrong one makes the text on both of its sides fail to decode strictly,
so it is noticed, and costs at most the event that was cut in two.
"""

from __future__ import annotations

import re

_FIRST_KEYS = rb'"(?:ph|name|cat|args|pid|tid|ts|dur|id|bp)"\s*:'
# Between events: `},` and the brace and first key of the next one.
_BOUNDARY = re.compile(rb"\}\s*,(?=\s*\{\s*" + _FIRST_KEYS + rb")")
# The head of an event, also where a comma is missing or what came before is damaged.
_EVENT_HEAD = re.compile(rb"\{\s*" + _FIRST_KEYS)
_WINDOW_BYTES = 1 << 14


def last_boundary(text: bytes) -> tuple[int, int] | None:
    """The end of an event, and the start of what follows its comma; searched in growing windows from the end."""
    window = _WINDOW_BYTES
    while True:
        following = len(text)
        for match in reversed(list(_BOUNDARY.finditer(text, max(0, len(text) - window)))):
            # An object without a phase is not an event, but part of one.
            if text.find(b'"ph"', match.end(), following) >= 0:
                return match.start() + 1, match.end()
            following = match.start()
        if window >= len(text):
            return None
        window *= 8


def event_heads(text: bytes) -> list[int]:
    """Offsets of the braces that begin an event; not those of `"args": {`."""
    return [
        match.start()
        for match in _EVENT_HEAD.finditer(text)
        if not text[max(0, match.start() - 64) : match.start()].rstrip().endswith(b":")
    ]
