"""Read files that a user names, and files in a folder that a user names: regular files of bounded size and nesting.

In: a path, or the text of one. Out: bytes, lines, decoded JSON or TOML. What is refused is an OSError, a
`msgspec.DecodeError` or a `tomllib.TOMLDecodeError`, whose text says why; the calling reader names its file, and
what to pass instead. A pipe or a device is refused before it is read: to open one can wait forever, and to read one can
fill the memory. Only `read_end` takes a pipe, which it neither waits for nor keeps as a whole.

Every reader of such files uses this module, and the fuzzer (`tests/fuzz`) knows each of them.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeVar, overload

import msgspec

MAX_BYTES = 1 << 30
MAX_STREAM_BYTES = 1 << 30  # of a pipe, of which only the end is kept
_CHUNK_BYTES = 1 << 20
_MAX_VISITS = 100  # of one folder, by different links
# The longest lines are those of a journal, with the losses of all steps of a trial.
MAX_LINE_BYTES = 16 << 20
# A line of a log. Regular expressions that search in one take a time that can grow with the square of its length.
MAX_LOG_LINE = 4096
# Decoders descend into a value by recursion, which Python bounds at a thousand levels.
_TOO_DEEP = "its values are nested too deeply"
_NOT_UTF_8 = "it is not UTF-8 text"
_MAX_EXPLAINED = 64 << 20  # bytes or characters of a text in which a syntax error is looked for again
# What Python's decoder misses in a text, by the start of its message.
_EXPECTED = {
    "Expecting value": "a value",
    "Extra data": "nothing more, because the value has ended",
    "Expecting ','": "a comma or the end of the value",
    "Expecting ':'": "a colon",
    "Expecting property name": "a name in double quotes",
    "Illegal trailing comma": "no comma before the end of the value",
    "Invalid control character": "no control character within a text",
    "Invalid \\": "a valid escape",
    "Unexpected UTF-8 BOM": "no byte order mark",
}
_KINDS = (
    (stat.S_ISDIR, "it is a folder"),
    (stat.S_ISFIFO, "it is a pipe"),
    (stat.S_ISSOCK, "it is a socket"),
    (stat.S_ISCHR, "it is a device"),
    (stat.S_ISBLK, "it is a device"),
)
_LONG_LINE = re.compile(rf"([^\n]{{{MAX_LOG_LINE}}})[^\n]+")
# Python's parser of TOML takes a time that grows with the square of the number of parts of a dotted key.
MAX_KEY_PARTS = 64
_KEY_PART = r"""(?:(?<![\w-])[\w-]++|"[^"\n]*+"|'[^'\n]*+')"""
_LONG_KEY = re.compile(rf"{_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART}){{{MAX_KEY_PARTS}}}")
# Python converts up to 4,300 digits to an integer, and raises ValueError for more. No counter has 64.
_LONG_NUMBER = re.compile(r"(\d{64})\d+")

T = TypeVar("T")


def open_file(path: Path) -> IO[bytes]:
    """Open a regular file to read it. Raise OSError for anything else."""
    # Without O_NONBLOCK, opening a pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            what = next((words for is_kind, words in _KINDS if is_kind(mode)), "it is not a file")
            raise OSError(errno.EINVAL, f"{what}, and only files are read", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def open_csv(path: Path, *, encoding: str = "utf-8", newline: str | None = None) -> IO[str]:
    """Open a regular file to read a table as text; `newline` is that of `open`."""
    return io.TextIOWrapper(open_file(path), encoding=encoding, newline=newline)


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES) -> bytes:
    """Return the content of a regular file. Raise OSError if it has more than `max_bytes`."""
    with open_file(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(errno.EFBIG, f"it has more than {max_bytes >> 20} MiB", str(path))
    return data


def read_end(path: Path, *, max_bytes: int) -> bytes:
    """Return the last `max_bytes` of a regular file or of a pipe that the user names, such as `<(ssh node1 cat log)`.

    A pipe that nobody writes to is empty. Raise OSError for any other kind of file.
    """
    if not stat.S_ISFIFO(os.stat(path).st_mode):
        with open_file(path) as file:
            file.seek(max(os.fstat(file.fileno()).st_size - max_bytes, 0))
            return file.read(max_bytes)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(descriptor, True)  # without a writer, only opening a pipe waits
    with os.fdopen(descriptor, "rb") as pipe:
        return read_end_of_stream(pipe, max_bytes=max_bytes)


def read_end_of_stream(stream: IO[bytes], *, max_bytes: int) -> bytes:
    """Return the last `max_bytes` of a pipe or of standard input. Raise OSError after `MAX_STREAM_BYTES`."""
    end = bytearray()
    num_read = 0
    while chunk := stream.read(_CHUNK_BYTES):
        num_read += len(chunk)
        if num_read > MAX_STREAM_BYTES:
            raise OSError(errno.EFBIG, f"it has more than {MAX_STREAM_BYTES >> 30} GiB, or no end")
        end += chunk
        if len(end) > 2 * max_bytes:
            del end[:-max_bytes]
    return bytes(end[-max_bytes:])


def read_text(path: Path, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of a regular file, with its line ends as `\\n`."""
    return read_bytes(path).decode(encoding, errors).replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file. A longer line comes in pieces of `MAX_LINE_BYTES`."""
    with open_file(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            is_whole = line.endswith(b"\n") or len(line) < MAX_LINE_BYTES
            yield line
            while not is_whole:
                rest = file.readline(MAX_LINE_BYTES)
                is_whole = rest.endswith(b"\n") or len(rest) < MAX_LINE_BYTES


def walk_with_links(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield each folder below `folder`, itself first, with the sorted names in it that are not folders; follow links.

    Raise OSError for a folder that cannot be read, and for links that lead back to a folder above them, or to one
    folder again and again: a few of them would be folders without end.
    """
    visits: Counter[tuple[int, int]] = Counter()
    waiting: list[tuple[Path, tuple[tuple[int, int], ...]]] = [(folder, ())]
    while waiting:
        path, above = waiting.pop()
        status = path.stat()
        identity = (status.st_dev, status.st_ino)
        visits[identity] += 1
        if identity in above or visits[identity] > _MAX_VISITS:
            raise OSError(errno.ELOOP, "its links lead to the same folder again and again", str(path))
        with os.scandir(path) as found:
            entries = sorted((entry.name, entry.is_dir()) for entry in found)
        yield path, [name for name, is_folder in entries if not is_folder]
        waiting += [(path / name, (*above, identity)) for name, is_folder in reversed(entries) if is_folder]


def bounded_log(text: str) -> str:
    """Return a log whose lines are cut at `MAX_LOG_LINE` characters, and its numbers at 64 digits."""
    return bounded_numbers(_LONG_LINE.sub(r"\1", text))


def bounded_numbers(text: str) -> str:
    """Return a text whose numbers are cut at 64 digits, so that each is an integer that Python can read."""
    return _LONG_NUMBER.sub(r"\1", text)


@overload
def decode_json(data: bytes | str) -> Any: ...


@overload
def decode_json(data: bytes | str, type: type[T], *, strict: bool = True) -> T: ...


def decode_json(data: bytes | str, type: Any = Any, *, strict: bool = True) -> Any:
    """Decode one JSON value. Raise `msgspec.DecodeError`, also for text that is not UTF-8 and for deep nesting."""
    try:
        return msgspec.json.decode(data, type=type, strict=strict)
    except UnicodeError:
        raise msgspec.DecodeError(_NOT_UTF_8) from None
    except RecursionError:
        raise msgspec.DecodeError(_TOO_DEEP) from None
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        raise msgspec.DecodeError(_syntax_problem(data)) from None


def _syntax_problem(data: bytes | str) -> str:
    """Say where a text stops being JSON, and what is expected there."""
    if len(data) > _MAX_EXPLAINED:
        return "it is not valid JSON"
    try:
        text = data if isinstance(data, str) else data.decode()
        json.loads(text, parse_constant=_refuse_constant, parse_int=len)
    except UnicodeError:
        return _NOT_UTF_8
    except RecursionError:
        return _TOO_DEEP
    except json.JSONDecodeError as error:
        return _words_of(error)
    except ValueError as error:
        return str(error)
    return "a text in it has half of a surrogate pair"  # Python takes this, and nothing else that is not JSON


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it has `{name}`, which is not a number in JSON")


def _words_of(error: json.JSONDecodeError) -> str:
    """Return one line on a syntax error: the place, what is expected there, and the character that is there instead."""
    text = error.doc.rstrip()
    if not text:
        return "it is empty"
    place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
    if error.pos >= len(text) or error.msg.startswith("Unterminated"):
        return f"at {place}, its end is missing"
    expected = next((words for start, words in _EXPECTED.items() if error.msg.startswith(start)), "valid JSON")
    there = text[error.pos]
    shown = f"`{there}`" if there.isprintable() else f"U+{ord(there):04X}"
    return f"at {place}, it must have {expected}, but has {shown}"


def decode_written_json(data: bytes | str, *, has_file_names: bool = False) -> Any:
    """Decode one JSON value as Python's `json` writes it, with `NaN` and `Infinity`. Raise as `decode_json` does.

    Half of a surrogate pair is replaced, because no terminal can show it. With `has_file_names` it is kept: in Python
    it stands for a byte of a file's name that is not UTF-8.
    """
    try:
        value = json.loads(data)
        if has_file_names or not _may_have_surrogates(data):
            return value
        return _with_whole_characters(value)
    except RecursionError:
        raise msgspec.DecodeError(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise msgspec.DecodeError(_words_of(error)) from None
    except ValueError as error:
        raise msgspec.DecodeError(_reason(error)) from None


def _may_have_surrogates(data: bytes | str) -> bool:
    """Whether a text has an escape of half a pair, or Python's `json` may have let one through as bytes."""
    if isinstance(data, str):
        return "\\ud" in data.lower()
    is_another_encoding = b"\0" in data
    return is_another_encoding or not _is_utf_8(data) or b"\\ud" in data.lower()


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _with_whole_characters(value: Any) -> Any:
    """Return a decoded value with U+FFFD in place of each half of a surrogate pair."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case list():
            return [_with_whole_characters(item) for item in value]
        case dict():
            return {_with_whole_characters(key): _with_whole_characters(item) for key, item in value.items()}
        case _:
            return value


def read_toml(path: Path, *, encoding: str = "utf-8") -> dict[str, Any]:
    """Return the content of a TOML file. Raise OSError or `tomllib.TOMLDecodeError`, also for a number without end."""
    data = read_bytes(path)
    try:
        text = data.decode(encoding)
        if _LONG_KEY.search(text):
            raise tomllib.TOMLDecodeError(f"a dotted key of more than {MAX_KEY_PARTS} parts")
        return tomllib.loads(text)
    except RecursionError:
        raise tomllib.TOMLDecodeError(_TOO_DEEP) from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        raise tomllib.TOMLDecodeError(_reason(error)) from None


def _reason(error: ValueError) -> str:
    """Return why a decoder of Python raised an error other than its own."""
    return _NOT_UTF_8 if isinstance(error, UnicodeError) else "an integer of more than 4,300 digits"


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a file that is not what it should be: its file, its number from 1, and the field and reason."""

    file: str
    number: int
    problem: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.number}: {self.problem}"
