"""Show a line as one reads it: without colours and invisible characters, with escaped signs as the signs themselves.

In: a line. Out: the same line in plain characters. A name and its secret can stand apart in the bytes although they are
side by side on a screen: a logger colours them, a URL writes `%3D` for the equals sign, JSON `\\u003d`, HTML `&#34;`.
What stands for a quote in JSON stays escaped, so that a masked line is still JSON.
"""

from __future__ import annotations

import re

_COLOUR = r"\[[0-9;:?]{0,40}[A-Za-z]"
_INVISIBLE = re.compile(
    rf"\x1b{_COLOUR}|\\(?:x1b|u001b|033|e){_COLOUR}|\x1b\][^\x07\x1b\n]{{0,200}}(?:\x07|\x1b\\)"
    r"|[\u200b-\u200f\u2060\ufeff\u00ad\u202a-\u202e\u2066-\u2069]"
)
_SIGNS = {
    "%3d": "=",
    "%3a": ":",
    "%26": "&",
    "%20": " ",
    "%22": "'",
    "%27": "'",
    "\\u003d": "=",
    "\\u003a": ":",
    "\\u0026": "&",
    "\\u0022": '\\"',
    "\\u0027": "'",
    "\\x3d": "=",
    "\\x22": '\\"',
    "&#34;": "&quot;",
    "&#x22;": "&quot;",
    "&#39;": "'",
    "&#x27;": "'",
    "&apos;": "'",
    "&#61;": "=",
    "&#58;": ":",
}
_ESCAPED = re.compile("|".join(map(re.escape, _SIGNS)), re.IGNORECASE)
_SPACES = "\u00a0\u2002\u2003\u2007\u2009\u202f\u3000"
# Letters and signs of double width, as an input method for Chinese types them.
_WIDE = {0xFF01 + offset: 0x21 + offset for offset in range(94)} | {ord(space): " " for space in _SPACES}


def plain_view(line: str) -> str:
    """Return the line in plain characters; the line itself if it has no others."""
    shown = _INVISIBLE.sub("", line)
    shown = _ESCAPED.sub(lambda sign: _SIGNS[sign[0].lower()], shown)
    return shown if shown.isascii() else shown.translate(_WIDE)
