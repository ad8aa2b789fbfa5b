"""Read a data set as the list of its samples, in the order in which a script sees them.

In: the folder or table, and its kind. Out: a `Listing`. No sample's content is read here. Raises InputError for a
source that is not a data set of this kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flatout.errors import InputError, UsageError
from flatout.packing.request import PackRequest
from flatout.records.packing import SourceSample

IMAGE_FOLDER, CSV, PARQUET, JSONL = "image-folder", "csv", "parquet", "jsonl"
KINDS = (IMAGE_FOLDER, CSV, PARQUET, JSONL)
_BY_SUFFIX = {".csv": CSV, ".parquet": PARQUET, ".pq": PARQUET, ".jsonl": JSONL, ".ndjson": JSONL}


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A data set's samples, in its own order."""

    kind: str
    root: Path  # the names of samples that are files are relative to it
    samples: tuple[SourceSample, ...]
    classes: tuple[str, ...] = ()  # names of the labels; empty: labels are numbers, or there are none


def read_source(request: PackRequest) -> Listing:
    """Return the samples of the data set. Raise InputError or UsageError if it cannot be read."""
    kind = request.kind if request.kind is not None else _kind_of(request.source)
    if kind not in KINDS:
        raise UsageError(f"`--kind` must be {', '.join(KINDS[:-1])} or {KINDS[-1]}, but is `{kind}`")
    if kind == IMAGE_FOLDER:
        from flatout.packing.image_folder import read_image_folder

        _refuse_table_options(request)
        root, samples, classes = read_image_folder(request.source)
    else:
        from flatout.packing.tables import read_table

        root, samples, classes = read_table(
            request.source,
            kind,
            path_column=request.path_column,
            label_column=request.label_column,
            group_column=request.stratify,
        )
    if not samples:
        raise InputError(f"`{request.source}` has no samples", hint="pass a data set with at least one sample")
    return Listing(kind=kind, root=root, samples=tuple(samples), classes=tuple(classes))


def _kind_of(source: Path) -> str:
    if source.is_dir():
        return IMAGE_FOLDER
    if not source.exists():
        raise InputError(f"`{source}` does not exist", hint="pass a folder of images by class, or a table")
    kind = _BY_SUFFIX.get(source.suffix.lower())
    if kind is None:
        raise InputError(
            f"`{source}` must be a folder, or a file that ends in .csv, .parquet or .jsonl",
            hint="name its kind: --kind csv, parquet or jsonl",
        )
    return kind


def _refuse_table_options(request: PackRequest) -> None:
    options = {"--path-column": request.path_column, "--label-column": request.label_column}
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"`{name}` is for tables, but {request.source} is a folder of images")
    if request.stratify not in (None, "label"):
        raise UsageError(f"`--stratify` must be label for a folder of images, but is `{request.stratify}`")
