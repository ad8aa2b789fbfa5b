"""Convert what a user wrote in a file into a record, and say in one line what is wrong with it.

In: decoded TOML, or the path of a file of it, and the record's type. Out: the record. A value of another form is a
`FormError`, whose text has the name of the value, the rule and what it is instead; the caller adds the file and the way
out. The rules are those of the type: its fields, their bounds and choices. It does not compare values with each other.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from flatout.errors import InputError
from flatout.input_files import read_toml

T = TypeVar("T")
_LONGEST = 40  # characters of a text that an error repeats
_MOST_NAMES = 8  # names that an error lists


class FormError(ValueError):
    """A value does not have the form of its record; the text says which value, and what it must be."""


class _Problem(NamedTuple):
    place: str  # the names that lead to the value, such as `price.low` or `jobs[2].nodes`
    rule: str  # completes "`place` must be"
    instead: str  # completes "but is"; empty if the value is missing

    def __str__(self) -> str:
        if not self.instead:
            return f"`{self.place}` is missing: it must be {self.rule}"
        where = f"`{self.place}`" if self.place else "the file"
        return f"{where} must be {self.rule}, but is {self.instead}"


class _UnknownName(NamedTuple):
    place: str
    name: str
    known: tuple[str, ...]

    def __str__(self) -> str:
        inside = f" in `{self.place}`" if self.place else ""
        close = difflib.get_close_matches(self.name, self.known, n=1)
        close = close or [name for name in self.known if name.startswith(self.name)]
        if close:
            return f"`{self.name}`{inside} is not a known name; the nearest one is `{close[0]}`"
        return f"`{self.name}`{inside} is not a known name; these are: {', '.join(self.known)}"


def read_record(path: Path, type: type[T], *, hint: str, encoding: str = "utf-8") -> T:
    """Return the record in a TOML file. Raise a one-line InputError with `hint` if it has another form."""
    content = read_table(path, hint=hint, encoding=encoding)
    try:
        record: T = converted(content, type)
    except FormError as error:
        raise InputError(f"`{path}`: {error}", hint=hint) from None
    return record


def read_table(path: Path, *, hint: str, encoding: str = "utf-8") -> dict[str, Any]:
    """Return the content of a TOML file. Raise a one-line InputError with `hint` if it cannot be read as TOML."""
    try:
        return read_toml(path, encoding=encoding)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` is not valid TOML: {error}", hint=hint) from None


def converted(value: object, type: Any, *, place: str = "") -> Any:
    """Return the value as a record of this type. Raise FormError if it has another form; `place` leads to it."""
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError:
        problem = next(_problems(value, inspect.type_info(type), place), None)
        # A rule that this module does not know would be refused by msgspec alone.
        raise FormError(str(problem) if problem is not None else f"{_shown(value)} has another form") from None


def _problems(value: object, kind: inspect.Type, place: str) -> Iterator[_Problem | _UnknownName]:
    """Yield what is wrong with a value, in the order of the record's fields."""
    match kind:
        case inspect.Metadata():
            yield from _problems_of_described(value, kind, place)
        case inspect.UnionType():
            yield from _problems_of_union(value, kind, place)
        case inspect.StructType() if isinstance(value, Mapping):
            yield from _problems_of_table(value, kind, place)
        case inspect.DictType() if isinstance(value, Mapping):
            for name, each in value.items():
                yield from _problems(each, kind.value_type, f"{place}.{name}" if place else str(name))
        case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
            if len(value) < (kind.min_length or 0):
                yield _Problem(place, _rule(kind), "an empty list")
            for number, each in enumerate(value, 1):
                yield from _problems(each, kind.item_type, f"{place}[{number}]")
        case _:
            if not _fits(value, kind):
                yield _Problem(place, _rule(kind), _shown(value))


def _problems_of_described(value: object, kind: inspect.Metadata, place: str) -> Iterator[_Problem | _UnknownName]:
    """Yield a type's problem, worded by its description."""
    for _ in _problems(value, kind.type, place):
        yield _Problem(place, _rule(kind), _shown(value))
        return


def _problems_of_union(value: object, kind: inspect.UnionType, place: str) -> Iterator[_Problem | _UnknownName]:
    """Yield the problem of the alternative that the value seems to be meant for: for a table, the table."""
    if any(next(_problems(value, each, place), None) is None for each in kind.types):
        return
    tables = [each for each in kind.types if isinstance(each, inspect.StructType | inspect.DictType)]
    if isinstance(value, Mapping) and tables:
        yield from _problems(value, tables[0], place)
    else:
        yield _Problem(place, _rule(kind), _shown(value))


def _problems_of_table(
    table: Mapping[str, object], kind: inspect.StructType, place: str
) -> Iterator[_Problem | _UnknownName]:
    fields = {field.encode_name: field for field in kind.fields}
    if kind.forbid_unknown_fields:
        yield from (_UnknownName(place, name, tuple(fields)) for name in table if name not in fields)
    for name, field in fields.items():
        inner = f"{place}.{name}" if place else name
        if name in table:
            yield from _problems(table[name], field.type, inner)
        elif field.required:
            yield _Problem(inner, _rule(field.type), "")


def _fits(value: object, kind: inspect.Type) -> bool:
    """Whether a single value is one of this type, within its bounds."""
    match kind:
        case inspect.NoneType():
            return value is None
        case inspect.BoolType():
            return isinstance(value, bool)
        case inspect.LiteralType():
            return value in kind.values
        case inspect.IntType():
            is_number = isinstance(value, int) and not isinstance(value, bool)
            return is_number and _is_within(value, kind)
        case inspect.FloatType():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return is_number and _is_within(value, kind)
        case inspect.StrType():
            return isinstance(value, str) and _fits_text(value, kind)
        case inspect.AnyType():
            return True
        case _:
            return False


def _is_within(value: Any, kind: inspect.IntType | inspect.FloatType) -> bool:
    return not (
        (kind.ge is not None and not value >= kind.ge)
        or (kind.gt is not None and not value > kind.gt)
        or (kind.le is not None and not value <= kind.le)
        or (kind.lt is not None and not value < kind.lt)
    )


def _fits_text(value: str, kind: inspect.StrType) -> bool:
    is_long_enough = len(value) >= (kind.min_length or 0)
    is_short_enough = kind.max_length is None or len(value) <= kind.max_length
    return is_long_enough and is_short_enough and re.search(kind.pattern or "", value) is not None


def _rule(kind: inspect.Type) -> str:
    """Return what a value of this type must be."""
    match kind:
        case inspect.Metadata():
            described = (kind.extra_json_schema or {}).get("description")
            return str(described) if described else _rule(kind.type)
        case inspect.UnionType():
            return " or ".join(_rule(each) for each in kind.types if not isinstance(each, inspect.NoneType))
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            return "one of " + ", ".join(_shown(value) for value in kind.values)
        case inspect.IntType():
            return "a whole number" + _bounds(kind)
        case inspect.FloatType():
            return "a number" + _bounds(kind)
        case inspect.StrType():
            return "a text in quotes"
        case inspect.ListType() | inspect.VarTupleType():
            return f"a list, each item {_rule(kind.item_type)}"
        case inspect.DictType():
            return f"a table, each value {_rule(kind.value_type)}"
        case inspect.StructType():
            return f"a table with {_names(kind)}"
        case _:
            return "of another type"


def _names(kind: inspect.StructType) -> str:
    needed = [field.encode_name for field in kind.fields if field.required]
    possible = [field.encode_name for field in kind.fields if not field.required]
    if not needed:
        return "some of " + ", ".join(possible[:_MOST_NAMES])
    return " and ".join(needed)


def _bounds(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" from {kind.ge:,} to {kind.le:,}"
    if kind.ge is not None:
        return f" of at least {kind.ge:,}"
    if kind.gt is not None:
        return f" above {kind.gt:,}"
    return f" of at most {kind.le:,}" if kind.le is not None else ""


def _shown(value: object) -> str:
    """Return a value as the user wrote it in TOML, cut if it is long."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case str():
            return f'"{value}"' if len(value) <= _LONGEST else f'"{value[:_LONGEST]}..."'
        case float() if math.isinf(value) or math.isnan(value):
            return str(value)
        case Mapping():
            return f"a table with {', '.join(map(str, list(value)[:_MOST_NAMES]))}" if value else "an empty table"
        case list():
            return f"a list of {len(value)}"
        case _:
            text = str(value)
            return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
