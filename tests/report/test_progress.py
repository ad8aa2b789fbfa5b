"""What a terminal is told while it waits: nothing for two seconds, then one line, gone in the end."""

from __future__ import annotations

import io
import time

import pytest

from flatout.report.progress import ProgressLine, WaitingLine


class _Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.mark.parametrize(
    ("quiet_s", "is_terminal", "is_told"), [(0.02, True, True), (30, True, False), (0.02, False, False)]
)
def test_a_long_wait_is_told_on_a_terminal(
    quiet_s: float, is_terminal: bool, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = _Stream(is_terminal=is_terminal)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("flatout.report.progress.QUIET_S", quiet_s)
    with WaitingLine("capturing 9 hosts"):
        time.sleep(0.3)
        assert ("capturing 9 hosts ..." in stream.getvalue()) == is_told
    assert stream.getvalue().endswith("\r\033[K") == is_told


def test_parts_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Stream(is_terminal=True)
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("flatout.report.progress.QUIET_S", 0.0)
    with ProgressLine("reading traces") as progress:
        progress.show(2, 8)
    assert "reading traces: 2 of 8" in stream.getvalue()
