"""What is said about text that is not JSON: where it stops being JSON, and what is expected there."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest

from flatout.input_files import _MAX_EXPLAINED, decode_json, decode_written_json, walk_with_links


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (b"null x", "at column 6, it must have nothing more, because the value has ended, but has `x`"),
        (
            b'{"a": 1}\n{"b": 2}',
            "at line 2, column 1, it must have nothing more, because the value has ended, but has `{`",
        ),
        (b'{\n "a": [1, 2,\n  3', "at line 3, column 4, its end is missing"),
        (b'{"a": 1', "at column 8, its end is missing"),
        (b'{"name": "abc', "at column 10, its end is missing"),
        (b'{"a": 1\n "b": 2}', 'at line 2, column 2, it must have a comma or the end of the value, but has `"`'),
        (b'{"a" 1}', "at column 6, it must have a colon, but has `1`"),
        (b"{'a': 1}", "at column 2, it must have a name in double quotes, but has `'`"),
        (b"step 3 loss 2.1", "at column 1, it must have a value, but has `s`"),
        (b'{"a": NaN}', "it has `NaN`, which is not a number in JSON"),
        (b'{"a": -Infinity}', "it has `-Infinity`, which is not a number in JSON"),
        (b'{"a": "\\x"}', "at column 8, it must have a valid escape, but has `\\`"),
        (b'{"a": "\x01"}', "at column 8, it must have no control character within a text, but has U+0001"),
        (b"\xef\xbb\xbf{}", "at column 1, it must have no byte order mark, but has U+FEFF"),
        (b"\x1f\x8b\x08\x00", "it is not UTF-8 text"),
        (b'"\\ud800"', "a text in it has half of a surrogate pair"),
        (b"[" * 3000, "its values are nested too deeply"),
    ],
)
def test_a_syntax_error_says_the_place_and_what_is_expected(text: bytes, problem: str) -> None:
    with pytest.raises(msgspec.DecodeError) as raised:
        decode_json(text)
    assert str(raised.value) == problem


@pytest.mark.parametrize("decode", [decode_json, decode_written_json])
@pytest.mark.parametrize(
    ("text", "problem"),
    [('{"a": 1}}', "at column 9, it must have nothing more"), ("[1, ", "at column 5, its end is missing")],
)
def test_both_decoders_speak_alike(decode: object, text: str, problem: str) -> None:
    with pytest.raises(msgspec.DecodeError) as raised:
        decode(text)  # type: ignore[operator]
    assert str(raised.value).startswith(problem)


def test_a_wrong_type_keeps_its_own_message() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"Expected `int`, got `str` - at `\$\[1\]`"):
        decode_json(b'[1, "2"]', list[int])


def test_a_very_long_text_is_not_read_twice() -> None:
    with pytest.raises(msgspec.DecodeError, match=r"^it is not valid JSON$"):
        decode_json(b"x" * (_MAX_EXPLAINED + 1))


def test_links_are_followed_but_not_without_end(tmp_path: Path) -> None:
    """A few links are folders without end, to a folder above them or two in each folder to the next one."""
    (tmp_path / "data" / "b").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "x").touch()
    (tmp_path / "data" / "b" / "y").touch()
    (tmp_path / "data" / "a").symlink_to("../other")
    (tmp_path / "data" / "c").symlink_to("b")
    found = [(path.relative_to(tmp_path).as_posix(), names) for path, names in walk_with_links(tmp_path / "data")]
    assert found == [("data", []), ("data/a", ["x"]), ("data/b", ["y"]), ("data/c", ["y"])]
    (tmp_path / "other" / "up").symlink_to("../data")
    with pytest.raises(OSError, match="same folder again and again") as raised:
        list(walk_with_links(tmp_path / "data"))
    assert raised.value.errno == errno.ELOOP
    for number in range(30):
        folder = tmp_path / "chain" / str(number)
        folder.mkdir(parents=True)
        for name in ("a", "b"):
            (folder / name).symlink_to(f"../{number + 1}")
    (tmp_path / "chain" / "30").mkdir()
    with pytest.raises(OSError, match="same folder again and again"):
        list(walk_with_links(tmp_path / "chain" / "0"))
