"""A record -> its fields as a Markdown table: the keys of its JSON, their types and meanings."""

from __future__ import annotations

import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Mapping
from typing import Any

import msgspec

from generators.markdown import table


def summary(record: type[msgspec.Struct]) -> str:
    text = inspect.cleandoc(record.__doc__ or "") if "__doc__" in vars(record) else ""
    return f"{text}\n\n" if text and not text.startswith(record.__name__ + "(") else ""


def fields(record: type[msgspec.Struct]) -> str:
    meanings = field_comments(record)
    rows = [
        [f"`{field.encode_name}`", _type_name(field.type), meanings.get(field.name, "")]
        for field in msgspec.structs.fields(record)
    ]
    return table(["Key", "Type", "Meaning"], rows)


def field_comments(record: type) -> dict[str, str]:
    """Return what the comment behind each field of a record says, or the comment lines above it."""
    comments: dict[str, str] = {}
    above: list[str] = []
    name = ""
    source = textwrap.dedent(inspect.getsource(record))
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("# ")
            if token.line.lstrip().startswith("#"):
                above.append(text)
            elif name:
                comments[name] = text
        elif token.type == tokenize.NAME and token.start[1] == 4 and (field := re.match(r"    (\w+):", token.line)):
            name = field[1]
            if above:
                comments[name] = " ".join(above)
            above = []
    return comments


def _type_name(kind: Any) -> str:
    """Return a Python type in the words of JSON."""
    info = msgspec.inspect.type_info(kind)
    return _json_type(info)


def _json_type(info: msgspec.inspect.Type) -> str:
    match info:
        case msgspec.inspect.UnionType(types=types):
            return " or ".join(_json_type(each) for each in types)
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.ListType(item_type=item):
            return f"array of {_plural(_json_type(item))}"
        case msgspec.inspect.TupleType(item_types=items):
            return f"array of {len(items)} {_plural(_json_type(items[0]))}"
        case msgspec.inspect.LiteralType(values=values):
            return " or ".join(f"`{value}`" for value in values)
        case msgspec.inspect.EnumType(cls=cls):
            return " or ".join(f"`{member.value}`" for member in cls)
        case msgspec.inspect.DictType(value_type=value):
            return "object" if isinstance(value, msgspec.inspect.AnyType) else f"object of {_plural(_json_type(value))}"
        case msgspec.inspect.StructType(cls=cls):
            return f"[{cls.__name__}](#{cls.__name__.lower()})"
        case _:
            return JSON_TYPES[type(info)]


def _plural(name: str) -> str:
    if " or " in name:
        return f"({name})"
    if name.startswith("array "):
        return f"arrays {name.removeprefix('array ')}"
    return name if name.startswith("[") else f"{name}s"


JSON_TYPES: Mapping[type, str] = {
    msgspec.inspect.StrType: "string",
    msgspec.inspect.IntType: "integer",
    msgspec.inspect.FloatType: "number",
    msgspec.inspect.BoolType: "boolean",
    msgspec.inspect.NoneType: "null",
}
