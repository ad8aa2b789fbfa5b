"""Find where one event ends and the next begins, in text too large to parse at once.

A boundary is guessed from the text around it. A wrong guess makes the text on both sides of it fail to decode strictly,
so it is detected, and costs at most the event that was split.
"""

from __future__ import annotations

import re

_FIRST_KEYS = rb'"(?:ph|name|cat|args|pid|tid|ts|dur|id|bp)"\s*:'
# Between events: `},` followed by the brace and first key of the next event.
_BOUNDARY = re.compile(rb"\}\s*,(?=\s*\{\s*" + _FIRST_KEYS + rb")")
# The head of an event, even if a comma is missing or the text before it is damaged.
_EVENT_HEAD = re.compile(rb"\{\s*" + _FIRST_KEYS)
_WINDOW_BYTES = 1 << 14


def last_boundary(text: bytes) -> tuple[int, int] | None:
    """Return the end of the last complete event, and the start of the text after its comma.

    The text is searched from its end, in growing windows.
    """
    window = _WINDOW_BYTES
    while True:
        following = len(text)
        for match in reversed(list(_BOUNDARY.finditer(text, max(0, len(text) - window)))):
            # An object without a phase is part of an event.
            if text.find(b'"ph"', match.end(), following) >= 0:
                return match.start() + 1, match.end()
            following = match.start()
        if window >= len(text):
            return None
        window *= 8


def event_heads(text: bytes) -> list[int]:
    """Return the offsets of the braces that begin an event, not those of `"args": {`."""
    return [
        match.start()
        for match in _EVENT_HEAD.finditer(text)
        if not text[max(0, match.start() - 64) : match.start()].rstrip().endswith(b":")
    ]
