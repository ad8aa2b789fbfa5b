"""The terminal of the live view: keys in, lines out, at least twice per second if the user does nothing.

Only the keyboard is used. The terminal is set back as it was, however the view ends.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from flatout.report.streams import standard_output
from flatout.report.terminal import TextStyle, style_of

_KEYS = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1b[C": "right",
    b"\x1b[D": "left",
    b"\x1b[5~": "page-up",
    b"\x1b[6~": "page-down",
    b"\x03": "q",
    b"\x1b": "q",
}
_SENT = re.compile(rb"\x1b\[[\d;]*[A-Za-z~]|.", re.DOTALL)
SMALLEST_WIDTH, SMALLEST_HEIGHT = 40, 10

# From a style with the width of the terminal, and the height, to the lines.
Render = Callable[[TextStyle, int], list[str]]


def show_live(render: Render, on_key: Callable[[str], None], interval_s: float) -> None:
    """Draw again and again until the user quits."""
    with _raw_keyboard(), _second_screen():
        next_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= next_s:
                _draw(render)
                next_s = now_s + interval_s
            keys = _read_keys(max(next_s - time.monotonic(), 0.0))
            if "q" in keys:
                return
            for key in keys:
                on_key(key)
                next_s = 0.0


def _draw(render: Render) -> None:
    size = shutil.get_terminal_size((80, 24))
    width, height = max(size.columns, SMALLEST_WIDTH), max(size.lines, SMALLEST_HEIGHT)
    base = style_of(sys.stdout)
    style = TextStyle(width=width, has_color=base.has_color, has_unicode=base.has_unicode)
    standard_output().draw_screen(render(style, height))


def _read_keys(wait_s: float) -> list[str]:
    """Return the keys that were pressed within `wait_s`: several if one is held down."""
    readable, _, _ = select.select([sys.stdin], [], [], wait_s)
    if not readable:
        return []
    data = os.read(sys.stdin.fileno(), 1024)
    if not data:  # the terminal is gone
        return ["q"]
    return keys_of(data)


def keys_of(data: bytes) -> list[str]:
    """Return the keys that a terminal sent."""
    return [_KEYS.get(sent, sent.decode(errors="replace")) for sent in _SENT.findall(data)]


@contextmanager
def _raw_keyboard() -> Iterator[None]:
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


@contextmanager
def _second_screen() -> Iterator[None]:
    out = standard_output()
    out.switch_screen(is_alternate=True)
    try:
        yield
    finally:
        out.switch_screen(is_alternate=False)
