"""Each run has the user's standard input from its beginning."""

from __future__ import annotations

import os
import pty
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from flatout.launch import LocalLauncher, StandardInput

READS_ALL = "import sys; sys.stdout.write(sys.stdin.read())"
READS_A_LINE = "print(input())"
READS_NOTHING = "print('done')"


def runs(source: StandardInput, folder: Path, *programs: str) -> list[str]:
    """What each of the programs, run one after another, printed."""
    launcher, printed = LocalLauncher(source), []
    for number, program in enumerate(programs):
        output = folder / f"{number}.log"
        launcher.run([sys.executable, "-S", "-c", program], os.environ, output=output, limit_s=20)
        printed.append(output.read_text())
    return printed


def piped(content: bytes, *, is_open: bool = False) -> int:
    """A pipe that has the content, and is closed at its other end unless `is_open`."""
    reading, writing = os.pipe()

    def write() -> None:
        os.write(writing, content)
        if not is_open:
            os.close(writing)

    threading.Thread(target=write, daemon=True).start()
    return reading


def test_each_run_reads_all_of_a_pipe(tmp_path: Path) -> None:
    content = b"".join(b"line %06d\n" % number for number in range(20_000))  # more than a pipe holds
    source = StandardInput(piped(content))
    assert source.missing is None
    first, second, third = runs(source, tmp_path, READS_ALL, READS_A_LINE, READS_ALL)
    assert first.encode() == third.encode() == content
    assert second == "line 000000\n"


def test_a_run_that_reads_less_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    content = b"first\n" + b"x" * 300_000
    assert [len(text) for text in runs(StandardInput(piped(content)), tmp_path, READS_A_LINE, READS_ALL)] == [
        len("first\n"),
        len(content),
    ]


def test_an_open_and_silent_pipe_holds_up_no_run_that_reads_nothing(tmp_path: Path) -> None:
    began = time.monotonic()
    reading, _writing = os.pipe()
    assert runs(StandardInput(reading), tmp_path, READS_NOTHING, READS_NOTHING) == ["done\n", "done\n"]
    assert time.monotonic() - began < 10


def test_what_an_open_pipe_has_is_given_to_each_run(tmp_path: Path) -> None:
    assert runs(StandardInput(piped(b"a\nb\n", is_open=True)), tmp_path, READS_A_LINE, READS_A_LINE) == ["a\n", "a\n"]


def test_a_socket_is_read_like_a_pipe(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    theirs.sendall(b"hello\n")
    theirs.close()
    with ours:
        assert runs(StandardInput(ours.fileno()), tmp_path, READS_ALL, READS_ALL) == ["hello\n", "hello\n"]


@pytest.mark.parametrize("already_read", [0, 6])
def test_each_run_reads_a_file_from_where_it_was(tmp_path: Path, already_read: int) -> None:
    (tmp_path / "input").write_bytes(b"first\nsecond\n")
    descriptor = os.open(tmp_path / "input", os.O_RDONLY)
    os.read(descriptor, already_read)
    rest = "first\nsecond\n"[already_read:]
    assert runs(StandardInput(descriptor), tmp_path, READS_ALL, READS_ALL) == [rest, rest]
    assert os.lseek(descriptor, 0, os.SEEK_CUR) == already_read, "ours is where it was"
    os.close(descriptor)


def test_a_terminal_is_not_given_to_runs(tmp_path: Path) -> None:
    _, terminal = pty.openpty()
    source = StandardInput(terminal)
    assert source.missing is not None
    assert "terminal" in source.missing
    assert runs(source, tmp_path, READS_ALL) == [""]


def test_no_standard_input_at_all_is_an_empty_one(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    source = StandardInput(reading)
    assert source.missing == "it is closed"
    assert runs(source, tmp_path, READS_ALL) == [""]
    with open(os.devnull, "rb") as nothing:
        assert StandardInput(nothing.fileno()).missing is None
