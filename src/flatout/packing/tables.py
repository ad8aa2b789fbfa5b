"""Read a table, CSV, JSONL or Parquet, whose rows are samples.

In: the file and the names of its columns. Out: its samples, in the order of the rows. A row names a file (relative to
the table's folder) or, in Parquet, holds the bytes of one; a row of JSONL without a path is itself a sample. The
other columns go with the sample as a JSON object. Labels that are whole numbers stay as they are, and others are
numbered in sorted order. Raises InputError for a row that cannot be a sample, with its line.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, open_csv, open_file
from flatout.packing.extras import needs_extra
from flatout.records.packing import CellContent, Content, FileContent, LineContent, SourceSample

_PATHS = ("path", "file_name", "filename", "file", "image_path", "image", "filepath")
_LABELS = ("label", "class", "target", "category", "labels")
_MAX_LINE_BYTES = 1 << 26
_MOST_LABEL = 1 << 63  # what a tensor of labels holds
_IMAGE_STARTS = ((b"\xff\xd8", "jpg"), (b"\x89PNG", "png"), (b"RIFF", "webp"), (b"II*\0", "tiff"), (b"BM", "bmp"))


@dataclass(frozen=True, slots=True)
class _Row:
    """A row: where it is, for messages; its values; and its own content, if it has any."""

    place: str
    values: Mapping[str, Any]
    content: Content | None = None
    extension: str = ""


def read_table(
    table: Path, kind: str, *, path_column: str | None, label_column: str | None, group_column: str | None
) -> tuple[Path, list[SourceSample], list[str]]:
    """Return the root, the samples and the classes; no classes if the labels are numbers."""
    try:
        rows, names = _READERS[kind](table, path_column)
    except OSError as error:
        raise InputError(f"`{table}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    paths = _column(table, names, path_column, _PATHS, "--path-column")
    labels = _column(table, names, label_column, _LABELS, "--label-column")
    groups = labels if group_column == "label" and "label" not in names else group_column
    if groups is not None and groups not in names:
        raise InputError(f"`--stratify` must be a column of {table.name}, but is `{groups}`", hint=_columns(names))
    if group_column == "label" and groups is None:
        raise InputError(f"`--stratify` needs labels, but {table.name} has none", hint="add --label-column NAME")
    if paths is None and kind != "jsonl":
        raise InputError(f"{table.name} must have a column of paths", hint=f"--path-column NAME; {_columns(names)}")
    columns = _Columns(paths, labels, groups)
    drafts = [_draft(table, row, columns) for row in _checked_rows(table, rows)]
    classes = _classes(table, drafts)
    root = _common_root(table, drafts)
    numbers = {name: number for number, name in enumerate(classes)}
    samples = [_sample(draft, root, numbers) for draft in drafts]
    _refuse_repeated(table, samples)
    return root, samples, classes


@dataclass(frozen=True, slots=True)
class _Columns:
    path: str | None
    label: str | None
    group: str | None


@dataclass(frozen=True, slots=True)
class _Draft:
    """A sample whose label has no number yet."""

    place: str
    content: Content
    extension: str
    label: int | str | None
    group: str
    fields: bytes


def _checked_rows(table: Path, rows: Iterable[_Row]) -> Iterator[_Row]:
    try:
        yield from rows
    except (csv.Error, UnicodeError) as error:
        raise InputError(f"`{table}` cannot be read as a table: {error}") from error
    except OSError as error:
        raise InputError(f"`{table}` cannot be read: {(error.strerror or str(error)).lower()}") from error


def _draft(table: Path, row: _Row, columns: _Columns) -> _Draft:
    values = dict(row.values)
    content, extension = row.content, row.extension
    if columns.path is not None and not isinstance(content, CellContent):
        path_value = values.pop(columns.path, None)
        if not isinstance(path_value, str) or not path_value or "\0" in path_value:
            raise InputError(f"{table}, {row.place}: column {columns.path} must be a path, but is {path_value!r}")
        path = os.path.normpath(table.absolute().parent / path_value)
        content = FileContent(path=path)
        extension = os.path.splitext(path)[1][1:].lower() or "bin"
    assert content is not None
    label = values.pop(columns.label, None) if columns.label is not None else None
    group = row.values.get(columns.group, "") if columns.group is not None else ""
    has_own_line = isinstance(content, LineContent)
    fields = b"" if has_own_line or not values else msgspec.json.encode(values, enc_hook=str)
    return _Draft(row.place, content, extension, _label(table, row, columns, label), str(group), fields)


def _label(table: Path, row: _Row, columns: _Columns, value: object) -> int | str | None:
    if columns.label is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise InputError(
            f"{table}, {row.place}: column {columns.label} must be a whole number or a text, but is {value!r}"
        )
    if isinstance(value, int) and not -_MOST_LABEL <= value < _MOST_LABEL:
        raise InputError(
            f"{table}, {row.place}: column {columns.label} must fit in 64 bits, but has {len(str(value))} digits"
        )
    return value


def _classes(table: Path, drafts: Sequence[_Draft]) -> list[str]:
    """Return the names of the labels, sorted; none if all labels are whole numbers."""
    texts = {draft.label for draft in drafts if isinstance(draft.label, str)}
    if not texts or all(_is_whole(text) for text in texts):
        return []
    numbers = [draft for draft in drafts if isinstance(draft.label, int)]
    if numbers:
        raise InputError(f"{table}, {numbers[0].place}: the label is a number, but other labels are texts")
    return sorted(texts)


def _is_whole(text: str) -> bool:
    return text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 19


def _common_root(table: Path, drafts: Sequence[_Draft]) -> Path:
    """Return the folder that holds all files; the table's own if there are none."""
    folders = {os.path.dirname(draft.content.path) for draft in drafts if isinstance(draft.content, FileContent)}
    return Path(os.path.commonpath(folders)) if folders else table.absolute().parent


def _sample(draft: _Draft, root: Path, numbers: Mapping[str, int]) -> SourceSample:
    label = draft.label
    if isinstance(label, str):
        label = numbers[label] if numbers else int(label)
    is_file = isinstance(draft.content, FileContent)
    name = os.path.relpath(draft.content.path, root) if is_file else draft.place
    return SourceSample(
        name=name,
        extension=draft.extension,
        content=draft.content,
        label=label,
        group=draft.group,
        fields=draft.fields,
    )


def _refuse_repeated(table: Path, samples: Sequence[SourceSample]) -> None:
    """Raise InputError if two rows name one file: by its path alone, a script could get either."""
    labels: dict[str, int | None] = {}
    for sample in samples:
        if sample.name in labels:
            raise InputError(f"`{table}` must name each file once, but names {sample.name} twice")
        labels[sample.name] = sample.label


def _column(table: Path, names: Sequence[str], requested: str | None, usual: Sequence[str], option: str) -> str | None:
    """Return the name of a column: the one that was requested, or else the first usual one that is there."""
    if requested is not None:
        if requested not in names:
            raise InputError(f"`{option}` must be a column of {table.name}, but is `{requested}`", hint=_columns(names))
        return requested
    return next((name for name in usual if name in names), None)


def _columns(names: Sequence[str]) -> str:
    return f"its columns are {', '.join(names[:20])}"


# The readers return the rows and the names of the columns.


def _read_csv(table: Path, path_column: str | None) -> tuple[Iterator[_Row], list[str]]:
    del path_column
    with open_csv(table, newline="") as file:
        try:
            names = next(csv.reader(file), [])
        except (csv.Error, UnicodeError) as error:
            raise InputError(f"`{table}` cannot be read as a table: {error}") from error

    def rows() -> Iterator[_Row]:
        with open_csv(table, newline="") as file:
            reader = csv.reader(file)
            next(reader, None)
            for values in reader:
                if not values:
                    continue
                if len(values) != len(names):
                    raise InputError(
                        f"{table}, line {reader.line_num}: the row must have {len(names)} values, as the first line has"
                        f" names, but has {len(values)}"
                    )
                yield _Row(f"line {reader.line_num}", dict(zip(names, values, strict=True)))

    return rows(), names


def _read_jsonl(table: Path, path_column: str | None) -> tuple[Iterator[_Row], list[str]]:
    first = next(_json_lines(table), None)
    names = list(first.values) if first is not None else []
    has_paths = path_column is not None or any(name in names for name in _PATHS)

    def rows() -> Iterator[_Row]:
        for row in _json_lines(table):
            yield _Row(row.place, row.values) if has_paths else row

    return rows(), names


def _json_lines(table: Path) -> Iterator[_Row]:
    offset = 0
    with open_file(table) as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES):
            number += 1
            place = f"line {number}"
            if len(line) == _MAX_LINE_BYTES:
                raise InputError(f"{table}, {place}: it has more than {_MAX_LINE_BYTES >> 20} MiB")
            text = line.rstrip(b"\r\n")
            if text.strip():
                yield _Row(place, _object(table, place, text), _line(table, offset, text), "json")
            offset += len(line)


def _line(table: Path, offset: int, text: bytes) -> LineContent:
    return LineContent(path=str(table.absolute()), offset=offset, num_bytes=len(text))


def _object(table: Path, place: str, text: bytes) -> dict[str, Any]:
    try:
        return decode_json(text, dict[str, Any])
    except msgspec.DecodeError as error:
        raise InputError(f"{table}, {place}: it must be a JSON object: {error}") from error


def _read_parquet(table: Path, path_column: str | None) -> tuple[Iterator[_Row], list[str]]:
    with needs_extra("data", "to read Parquet"):
        import pyarrow as arrow
        from pyarrow import parquet
    with open_file(table):  # so that anything but a regular file has its usual message
        pass
    try:
        file = parquet.ParquetFile(table)
    except arrow.ArrowException as error:
        raise InputError(f"`{table}` is not valid Parquet: {str(error).splitlines()[0]}") from error
    schema = file.schema_arrow
    names = list(schema.names)
    wanted = [path_column] if path_column in names else [name for name in _PATHS if name in names]
    cell_column = next((name for name in wanted if _bytes_field(schema.field(name).type, arrow) is not None), None)

    def rows() -> Iterator[_Row]:
        number = 0
        for group in range(file.num_row_groups):
            table_of_group = file.read_row_group(group, columns=[name for name in names if name != cell_column])
            starts = _cell_starts(file, group, cell_column, table_of_group.num_rows)
            for row, values in enumerate(table_of_group.to_pylist()):
                number += 1
                if cell_column is None:
                    yield _Row(f"row {number}", values)
                    continue
                cell = CellContent(path=str(table.absolute()), group=group, row=row, column=cell_column)
                yield _Row(f"row {number}", values, cell, starts[row])

    return rows(), names


def _cell_starts(file: Any, group: int, column: str | None, num_rows: int) -> list[str]:
    """Return the extension for the bytes in each cell, by how they begin."""
    if column is None:
        return [""] * num_rows
    cells = file.read_row_group(group, columns=[column]).column(0).to_pylist()
    return [extension_of(cell_bytes(cell) or b"") for cell in cells]


def cell_bytes(cell: Any) -> bytes | None:
    """Return the bytes in a cell: plain, or as Hugging Face stores images and sound."""
    value = cell.get("bytes") if isinstance(cell, dict) else cell
    return value if isinstance(value, bytes) else None


def _bytes_field(kind: Any, arrow: Any) -> Any:
    """Return the type of the bytes in a column; None for a column of anything else."""
    if arrow.types.is_struct(kind):
        position = kind.get_field_index("bytes")
        kind = kind.field(position).type if position >= 0 else kind
    is_bytes = arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)
    return kind if is_bytes else None


def extension_of(data: bytes) -> str:
    return next((extension for start, extension in _IMAGE_STARTS if data.startswith(start)), "bin")


_READERS = {"csv": _read_csv, "jsonl": _read_jsonl, "parquet": _read_parquet}
