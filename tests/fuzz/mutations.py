"""Damage a file in a way that its format suggests: a wrong type in JSON, a moved cell in CSV, a huge number in a text.

In: the bytes of a valid file, its name and a source of random numbers. Out: other bytes. The same seed gives the same
bytes. Nothing is written.
"""

from __future__ import annotations

import gzip
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

HUGE_INTEGER = "9" * 5000  # Python refuses to convert more than 4,300 digits
NUMBERS = (
    *("0", "-1", "1", "2", "-0.0", "0.5", "1e-320", "1e308", "1e400", "-1e400", "1e999999999"),
    *("4e8", "1e11", "1e12", "1e18", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808"),
    *("18446744073709551616", "1000000000", "999999999999999999999", "NaN", "Infinity", "-Infinity", HUGE_INTEGER),
)
STRINGS = (
    *("", " ", "\0", "\n", "null", "nan", "-inf", "../../etc/passwd", "/dev/zero", "{}", "%s%n", "{0}", "${HOME}"),
    *("\x1b[31m", "\u202e", "\ud800", "é", "١٢٣", "1_000", "0x10", "²", "1,2", '"', "'", "a" * 300, "9" * 5000),
    *("2026-13-45T99:99:99", "0001-01-01T00:00:00", "9999-12-31T23:59:59", "99999999-00:00:00", "1e5", "--help"),
)
JSON_VALUES: tuple[Any, ...] = (
    *(None, True, False, [], {}, "", 0, -1, 1, 0.5, 1e308, 10**9, 10**12, 2**31, 2**53, 2**63, 2**64, 10**30),
    *([None], [[]], [0], ["a"], {"": None}, {"a": 1}, {"schema": "flatout/other"}, "1", "nan", float("inf")),
    *(float("nan"), -(2**63), 1e-320),
)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_LONG = 150_000
_DEEP = 3_000
_MAX_BYTES = 4 << 20

Mutation = Callable[[bytes, Random], bytes]


def mutate(data: bytes, name: str, random: Random) -> bytes:
    """Return damaged `data`: mostly in one place, and sometimes in several."""
    for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
        data = _mutate_once(data, name, random)[:_MAX_BYTES]
    return data


def _mutate_once(data: bytes, name: str, random: Random) -> bytes:
    if random.random() < 0.15:
        return random.choice(_BYTE_MUTATIONS)(data, random)
    for suffix, change in _CONTAINERS.items():
        if name.endswith(suffix):
            return change(data, name, random)
    for suffix, mutations in _BY_SUFFIX.items():
        if name.endswith(suffix):
            return random.choice(mutations)(data, random)
    return random.choice(_TEXT_MUTATIONS)(data, random)


def _times(length: int, count: int) -> int:
    """Return how often a part of this length may be repeated, at most `count` times."""
    return min(count, _MAX_BYTES // max(length, 1) + 1)


# Any bytes


def _flip(data: bytes, random: Random) -> bytes:
    if not data:
        return b"\0"
    changed = bytearray(data)
    for _ in range(random.choice((1, 1, 4, 32))):
        changed[random.randrange(len(changed))] = random.randrange(256)
    return bytes(changed)


def _truncate(data: bytes, random: Random) -> bytes:
    return data[: random.randint(0, len(data))]


def _remove_slice(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    return data[:start] + data[start + random.choice((1, 8, 100, 5000)) :]


def _repeat_slice(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    part = data[start : start + random.choice((1, 20, 500))]
    return data[:start] + part * random.choice((2, 50, 1000)) + data[start:]


def _insert(data: bytes, random: Random) -> bytes:
    start = random.randint(0, len(data))
    inserted = random.choice((b"\0" * 64, b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n\n", b"a" * _LONG))
    return data[:start] + inserted + data[start:]


def _two_documents(data: bytes, random: Random) -> bytes:
    return data + random.choice((b"", b"\n", b"\0", b" ", b",")) + data


def _stored_in_a_zip(data: bytes, random: Random) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for number in range(random.choice((1, 2))):
            archive.writestr(f"rank{number}.json", data)
    return buffer.getvalue()


def _empty(data: bytes, random: Random) -> bytes:
    return random.choice((b"", b"\n", b"{}", b"[]", b"null", b"0", b'""'))


def _utf_16(data: bytes, random: Random) -> bytes:
    return data.decode("utf-8", "replace").encode(random.choice(("utf-16", "utf-8-sig", "latin-1")), "replace")


_BYTE_MUTATIONS: tuple[Mutation, ...] = (
    *(_flip, _truncate, _remove_slice, _repeat_slice, _insert, _two_documents, _stored_in_a_zip, _empty, _utf_16),
)


# Text


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _as_bytes(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _replace_number(data: bytes, random: Random) -> bytes:
    text = _text(data)
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return _insert(data, random)
    number = random.choice(numbers)
    return _as_bytes(text[: number.start()] + random.choice(NUMBERS) + text[number.end() :])


def _replace_word(data: bytes, random: Random) -> bytes:
    text = _text(data)
    words = list(re.finditer(r"[^\s,|=:\"'<>\[\]{}]+", text))
    if not words:
        return _insert(data, random)
    word = random.choice(words)
    return _as_bytes(text[: word.start()] + random.choice((*STRINGS, "a" * _LONG)) + text[word.end() :])


def _change_lines(data: bytes, random: Random) -> bytes:
    lines = _text(data).splitlines(keepends=True)
    if not lines:
        return _insert(data, random)
    place = random.randrange(len(lines))
    match random.randrange(6):
        case 0:
            del lines[place]
        case 1:
            lines[place] *= _times(len(lines[place]), random.choice((2, 10, 1000)))
        case 2:
            random.shuffle(lines)
        case 3:
            lines[place] = lines[place].rstrip("\n")
        case 4:
            line = lines[place].rstrip("\n")
            lines[place] = line * _times(len(line), random.choice((2, 2000))) + "\n"
        case 5:
            other = random.randrange(len(lines))
            lines[place], lines[other] = lines[other], lines[place]
    return _as_bytes("".join(lines))


def _long_run(data: bytes, random: Random) -> bytes:
    """Insert a long line, such as regular expressions that begin anywhere find slow."""
    text = _text(data)
    lines = text.splitlines(keepends=True)
    pieces = ("a", "0", " ", ":", "[", "<", "/", "a:", "0.", "\\", "<a ", "=", "-", "0000:00:", "NCCL ", "GPU ", "\t")
    run = random.choice(pieces) * (_LONG // 2)
    lines.insert(random.randint(0, len(lines)), run + random.choice(("", "\n", "!\n")))
    if random.random() < 0.3 and lines:
        place = random.randrange(len(lines))
        lines[place] = lines[place].rstrip("\n") + run + "\n"
    return _as_bytes("".join(lines))


_TEXT_MUTATIONS: tuple[Mutation, ...] = (_replace_number, _replace_word, _change_lines, _long_run)


# JSON


def _nested(value: Any, depth: int) -> str:
    return "[" * depth + json.dumps(value) + "]" * depth


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values in a decoded JSON value."""
    found = [path]
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))[:200]
    else:
        children = []
    for key, child in children:
        found += _places(child, (*path, key))
    return found


def _mutated_value(value: Any, random: Random) -> Any:
    """Return a decoded JSON value with a change in one place."""
    path = random.choice(_places(value))
    if not path:
        return random.choice(JSON_VALUES)
    parent = value
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    match random.randrange(8):
        case 0 | 1 | 2:
            parent[last] = random.choice(JSON_VALUES)
        case 3:
            parent[last] = random.choice(STRINGS)
        case 4:
            del parent[last]
        case 5 if isinstance(parent, dict):
            parent[random.choice(STRINGS)] = parent.pop(last)
        case 5 | 6:
            places = _places(value)[1:]
            other = random.choice(places)
            taken = value
            for key in other:
                taken = taken[key]
            if path[: len(other)] != other:
                parent[last] = json.loads(json.dumps(taken))
        case 7:
            size = len(json.dumps(parent[last]))
            parent[last] = [parent[last]] * _times(size, random.choice((0, 2, 1000)))
    return value


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "replace")


def _json_value(data: bytes, random: Random) -> bytes:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return random.choice(_TEXT_MUTATIONS)(data, random)
    return _dumped(_mutated_value(value, random))


def _json_line(data: bytes, random: Random) -> bytes:
    lines = data.split(b"\n")
    filled = [number for number, line in enumerate(lines) if line.strip()]
    if not filled:
        return _insert(data, random)
    # The first line is a header in most files, and describes all others.
    number = filled[0] if random.random() < 0.25 else random.choice(filled)
    lines[number] = _json_value(lines[number], random)
    return b"\n".join(lines)


def _json_deep(data: bytes, random: Random) -> bytes:
    text = _text(data)
    numbers = list(_NUMBER.finditer(text))
    if not numbers:
        return _nested(0, _DEEP).encode()
    number = random.choice(numbers)
    deep = random.choice((_nested(0, _DEEP), "[" * _DEEP, '{"a":' * _DEEP + "0" + "}" * _DEEP, _nested(0, 100_000)))
    return _as_bytes(text[: number.start()] + deep + text[number.end() :])


_JSON_MUTATIONS: tuple[Mutation, ...] = (_json_value,) * 6 + (_json_deep, _replace_number, _replace_word, _change_lines)
_JSON_LINE_MUTATIONS: tuple[Mutation, ...] = (
    *((_json_line,) * 6),
    *(_json_deep, _replace_number, _replace_word, _change_lines),
)


# CSV and other tables


def _cell(data: bytes, random: Random) -> bytes:
    lines = _text(data).split("\n")
    number = random.randrange(len(lines))
    delimiter = max(",|\t", key=lines[0].count)
    cells = lines[number].split(delimiter)
    place = random.randrange(len(cells))
    match random.randrange(7):
        case 0 | 1:
            cells[place] = random.choice(NUMBERS)
        case 2:
            cells[place] = random.choice((*STRINGS, "a" * _LONG))
        case 3:
            del cells[place]
        case 4:
            cells.insert(place, random.choice(STRINGS))
        case 5:
            cells[place] = '"' + cells[place]
        case 6:
            other = random.randrange(len(cells))
            cells[place], cells[other] = cells[other], cells[place]
    lines[number] = delimiter.join(cells)
    return _as_bytes("\n".join(lines))


_TABLE_MUTATIONS: tuple[Mutation, ...] = (_cell,) * 6 + _TEXT_MUTATIONS


# TOML


def _toml_value(data: bytes, random: Random) -> bytes:
    lines = _text(data).split("\n")
    assignments = [number for number, line in enumerate(lines) if "=" in line]
    if not assignments:
        return _insert(data, random)
    number = random.choice(assignments)
    key = lines[number].partition("=")[0]
    toml_numbers = [text.replace("Infinity", "inf").replace("NaN", "nan") for text in NUMBERS]
    values = (
        *("true", '""', "[]", "{}", '["a"]', "[[1]]", "1979-05-27", "07:32:00", '{a = "b"}', "[" * _DEEP + "]" * _DEEP),
        *toml_numbers,
        *(json.dumps(text) for text in STRINGS if text.isprintable()),
    )
    match random.randrange(6):
        case 0 | 1 | 2 | 3:
            lines[number] = f"{key}= {random.choice(values)}"
        case 4:
            del lines[number]
        case 5:
            lines[number] = f"{random.choice(('a', 'version', 'schema', 'gpu.a', '[a]', '[[a]]'))} = 1"
    return _as_bytes("\n".join(lines))


_TOML_MUTATIONS: tuple[Mutation, ...] = (_toml_value,) * 6 + _TEXT_MUTATIONS


# XML


def _xml_part(data: bytes, random: Random) -> bytes:
    text = _text(data)
    tags = list(re.finditer(r"<[^<>]*>", text))
    if not tags:
        return _insert(data, random)
    tag = random.choice(tags)
    match random.randrange(5):
        case 0:
            count = _times(len(tag[0]), random.choice((2, 40, 5000)))
            return _as_bytes(text[: tag.start()] + tag[0] * count + text[tag.end() :])
        case 1:
            return _as_bytes(text[: tag.start()] + text[tag.end() :])
        case 2:
            end = random.choice(tags).end()
            start, end = sorted((tag.start(), end))
            count = _times(end - start, random.choice((1, 3, 30)))
            return _as_bytes(text[:end] + text[start:end] * count + text[end:])
        case 3:
            entities = '<!DOCTYPE a [<!ENTITY x0 "ha">' + "".join(
                f'<!ENTITY x{level} "{f"&x{level - 1};" * 10}">' for level in range(1, 12)
            )
            return _as_bytes(f"{entities}]>{text[: tag.end()]}&x11;{text[tag.end() :]}")
        case _:
            attribute = re.sub(r'"[^"]*"', lambda _: json.dumps(random.choice(NUMBERS)), tag[0], count=1)
            return _as_bytes(text[: tag.start()] + attribute + text[tag.end() :])


_XML_MUTATIONS: tuple[Mutation, ...] = (_xml_part,) * 6 + _TEXT_MUTATIONS

_BY_SUFFIX: dict[str, tuple[Mutation, ...]] = {
    ".jsonl": _JSON_LINE_MUTATIONS,
    ".json": _JSON_MUTATIONS,
    ".csv": _TABLE_MUTATIONS,
    ".psv": _TABLE_MUTATIONS,
    ".tsv": _TABLE_MUTATIONS,
    ".toml": _TOML_MUTATIONS,
    ".xml": _XML_MUTATIONS,
}


# Files in other files


def _in_gzip(data: bytes, name: str, random: Random) -> bytes:
    try:
        inner = gzip.decompress(data)
    except (OSError, EOFError, ValueError, zlib.error):
        return random.choice(_BYTE_MUTATIONS)(data, random)
    return gzip.compress(_mutate_once(inner, name.removesuffix(".gz"), random), 1, mtime=0)


def _in_xz(data: bytes, name: str, random: Random) -> bytes:
    try:
        inner = lzma.decompress(data)
    except (lzma.LZMAError, EOFError):
        return random.choice(_BYTE_MUTATIONS)(data, random)
    return lzma.compress(_mutate_once(inner, name.removesuffix(".xz"), random), preset=0)


def _in_tar(data: bytes, name: str, random: Random) -> bytes:
    """Change one member's content, name, type or size."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            members = [(member, archive.extractfile(member)) for member in archive]
            contents = [(member, b"" if file is None else file.read()) for member, file in members]
    except (tarfile.TarError, EOFError, OSError, ValueError, KeyError):
        return random.choice(_BYTE_MUTATIONS)(data, random)
    if not contents:
        return _insert(data, random)
    number = random.randrange(len(contents))
    member, content = contents[number]
    match random.randrange(6):
        case 0 | 1 | 2:
            content = _mutate_once(content, member.name, random)
        case 3:
            member.name = random.choice(("../x.json", "/x.json", "a/" * 200 + "x.json", "x.json", "-x.json"))
        case 4:
            types = (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE)
            member.type, member.linkname, content = random.choice(types), "/etc/hostname", b""
        case 5:
            contents.append((member, content))
    contents[number] = (member, content)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for each, text in contents:
            each.size = len(text)
            archive.addfile(each, io.BytesIO(text))
    return buffer.getvalue()


_CONTAINERS: dict[str, Callable[[bytes, str, Random], bytes]] = {".gz": _in_gzip, ".xz": _in_xz, ".tar": _in_tar}
