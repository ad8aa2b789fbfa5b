"""Nothing that a terminal acts on leaves Flatout, by whatever road it came in."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import unicodedata
from pathlib import Path

import pytest

import flatout
from flatout.api.arguments import say_to_stderr
from flatout.errors import InputError
from flatout.report.streams import CleanStream, clean_streams, draw_line, one_line, safe_json
from flatout.report.terminal import BOLD, DIM, RESET

PACKAGE = Path(flatout.__file__).parent
# Controls, format characters (which include the bidirectional ones), surrogates, private use, separators.
_CATEGORIES = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_every_character_of_a_dangerous_category_is_escaped_and_no_other() -> None:
    every = [chr(number) for number in range(sys.maxunicode + 1)]
    dangerous = {character for character in every if unicodedata.category(character) in _CATEGORIES} - {"\n", "\t"}
    ordinary = "".join(character for character in every if unicodedata.category(character) not in (*_CATEGORIES, "Cn"))
    screen = io.StringIO()
    stream = CleanStream(screen)
    stream.write("".join(sorted(dangerous)))
    assert screen.getvalue().isascii() and screen.getvalue().isprintable()
    screen.seek(0)
    screen.truncate()
    stream.write(ordinary + "\n\t")
    assert screen.getvalue() == ordinary + "\n\t"


def test_the_text_of_an_error_is_clean_wherever_it_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Python prints the errors of `flatout.api` itself, past the stream that the command line has."""
    name = "ra\x1b[31mnk\x1b]0;t\x07\u202e\r\x9b2J\ud800é"
    error = InputError(f"{name} is empty", hint=f"pass {name}")
    shown = r"ra\x1b[31mnk\x1b]0;t\x07\u202e\r\x9b2J\ud800é"
    assert (str(error), error.hint) == (f"{shown} is empty", f"pass {shown}")
    say_to_stderr(name)
    assert capsys.readouterr().err == f"flatout: {shown}\n"


def test_only_the_styles_of_reports_pass_and_only_on_a_terminal() -> None:
    text = f"{BOLD}title{RESET} {DIM}note{RESET} \x1b[31mred\x1b[2J\x1b]0;title\a"
    shown, plain = io.StringIO(), io.StringIO()
    CleanStream(shown, is_styled=True).write(text)
    CleanStream(plain).write(text)
    assert shown.getvalue() == f"{BOLD}title{RESET} {DIM}note{RESET} \\x1b[31mred\\x1b[2J\\x1b]0;title\\x07"
    assert "\x1b" not in plain.getvalue()


def test_all_that_is_printed_passes_through_it_and_the_streams_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = _Terminal(), _Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    with clean_streams():
        print(f"{BOLD}a\u202eb{RESET}")
        print(f"{BOLD}a\x9bb", file=sys.stderr)
        sys.stderr.writelines(["\x07", "c\n"])
        assert sys.stdout.isatty()
    assert out.getvalue() == f"{BOLD}a\\u202eb{RESET}\n"
    assert err.getvalue() == "\\x1b[1ma\\x9bb\n\\x07c\n"
    assert (sys.stdout, sys.stderr) == (out, err)


def test_a_line_of_progress_is_drawn_but_its_text_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    err = _Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    draw_line("host\x1b[31m-1\r: 3")
    draw_line("")
    assert err.getvalue() == "\r\x1b[Khost\\x1b[31m-1\\r: 3\r\x1b[K"


def test_a_character_that_the_terminal_lacks_is_escaped() -> None:
    raw = io.BytesIO()
    screen = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    CleanStream(screen).write("5 \u00b5s \udcff")
    assert raw.getvalue() == b"5 \\xb5s \\udcff"


def test_an_error_is_one_line_whatever_its_name_contains() -> None:
    assert one_line("`a\nnext: rm -rf /\t\x1b[31m` is missing\n") == "`a\\nnext: rm -rf /\\t\\x1b[31m` is missing"


def test_json_keeps_its_meaning() -> None:
    value = {"name": "ra\x7f\x9bnk\u202e\U000e0041\u20280", "text": "\u00e9 \u2028 ok"}
    text = safe_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == value
    assert not any(unicodedata.category(character) in _CATEGORIES for character in text)


# Modules that write to a standard stream without `print`, and why that never reaches a terminal.
_WRITES_PAST_THE_STREAMS = {
    "nccl_tuner/rank.py": "a rank's standard output is a pipe to `flatout tune nccl`",
    "probe/ceilings/reader.py": "a reader's standard output is a pipe to the worker that started it",
    "probe/ceilings/rank_group.py": "a worker's standard output is a pipe to `flatout bench`",
    "probe/ceilings/worker.py": "a worker's standard output is a pipe to `flatout bench`",
    "report/streams.py": "the one place",
}


# To parse all sources, and to write out each part of them as text, takes seconds.
_PERHAPS_A_ROAD = re.compile(r"__std|\.buffer\b|/dev/|\bos\.|\bopen\b")


def _roads_past_the_streams(source: str) -> list[str]:
    if not _PERHAPS_A_ROAD.search(source):
        return []
    return [road for node in ast.walk(ast.parse(source)) if (road := _road(node)) is not None]


def _road(node: ast.AST) -> str | None:
    """Return how the code reaches a terminal, if it does not write to `sys.stdout` or `sys.stderr`."""
    if isinstance(node, ast.Attribute):
        if node.attr not in ("__stdout__", "__stderr__", "buffer"):
            return None
        text = ast.unparse(node)
        return text if node.attr != "buffer" or text in ("sys.stdout.buffer", "sys.stderr.buffer") else None
    if isinstance(node, ast.Constant):
        return node.value if node.value in ("/dev/tty", "/dev/stdout", "/dev/stderr") else None
    if isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in ("os.write", "os.fdopen", "open"):
        is_standard = ast.unparse(node.args[0]) in ("1", "2", "sys.stdout.fileno()", "sys.stderr.fileno()")
        return ast.unparse(node) if is_standard else None
    return None


@pytest.mark.parametrize(
    "source",
    [
        "sys.__stderr__.write(x)",
        "sys.stdout.buffer.write(x)",
        "os.write(2, x)",
        "open('/dev/tty', 'w').write(x)",
        "os.fdopen(1, 'w')",
        "open(sys.stdout.fileno(), 'w')",
    ],
)
def test_a_road_past_the_streams_is_found(source: str) -> None:
    assert len(_roads_past_the_streams(source)) == 1


def test_nothing_writes_to_a_terminal_past_the_streams() -> None:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(PACKAGE))
        roads = _roads_past_the_streams(path.read_text(encoding="utf-8"))
        if roads and name not in _WRITES_PAST_THE_STREAMS:
            found[name] = roads
    assert found == {}
