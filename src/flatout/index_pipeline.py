"""Find the results of Flatout in a folder: the JSON that its commands printed, and the pages that they wrote.

In: a folder. Out: a `ResultIndex`. A page belongs to a JSON file of the same name, or to the only JSON file of its
folder. Other files are ignored, and no link is followed out of the folder.
"""

from __future__ import annotations

import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, open_file, read_bytes
from flatout.records.index import IndexedResult, ResultIndex
from flatout.report.headline import headline

MOST_RESULTS = 2000
MOST_FILES = 200_000  # looked at in a folder
_MAX_BYTES = 64 << 20
_HEAD_BYTES = 4096
_HINT = "pass a folder with results: what commands printed with --json, and pages"
_SCHEMA = re.compile(rb'"schema"\s*:\s*"flatout/([a-z-]{1,40})"')
_GENERATOR = re.compile(rb'<meta name="generator" content="flatout ')
_TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
_SKIPPED = {"node_modules", "__pycache__"}


def index_folder(folder: Path, *, without: Path | None = None) -> ResultIndex:
    """Return the results below the folder, without the page `without`.

    Raises InputError if it is no folder, or holds no results.
    """
    if not folder.is_dir():
        raise InputError(f"`{folder}` is not a folder", hint=_HINT)
    results: list[IndexedResult] = []
    unreadable: list[str] = []
    pages: dict[str, Path] = {}
    for path in _files(folder):
        if without is not None and path.resolve() == without.resolve():
            continue
        place = path.relative_to(folder).as_posix()
        head = _head(path)
        if path.suffix == ".html":
            if _GENERATOR.search(head):
                pages[place] = path
        elif _SCHEMA.search(head):
            try:
                results.append(_of_json(path, place))
            except (InputError, OSError) as error:
                unreadable.append(f"{place}: {error}")
    merged = _with_pages(results, pages)
    if not merged and not unreadable:
        raise InputError(f"`{folder}` holds no results", hint=_HINT)
    merged.sort(key=lambda result: (-result.written_s, result.path))
    return ResultIndex(
        folder=str(folder),
        results=tuple(merged[:MOST_RESULTS]),
        num_not_listed=max(0, len(merged) - MOST_RESULTS),
        unreadable=tuple(unreadable[:MOST_RESULTS]),
    )


def _files(folder: Path) -> Iterator[Path]:
    """Yield the JSON files and pages below the folder, in a fixed order."""
    num_files = 0
    for name, folders, files in os.walk(folder):
        folders[:] = sorted(each for each in folders if not each.startswith(".") and each not in _SKIPPED)
        num_files += len(files)
        if num_files > MOST_FILES:
            raise InputError(f"`{folder}` must have at most {MOST_FILES:,} files, but has more", hint=_HINT)
        for file in sorted(files):
            path = Path(name, file)
            if path.suffix in (".json", ".html") and path.is_file() and not path.is_symlink():
                yield path


def _head(path: Path) -> bytes:
    try:
        with open_file(path) as file:
            return file.read(_HEAD_BYTES)
    except (OSError, InputError):
        return b""


def _of_json(path: Path, place: str) -> IndexedResult:
    try:
        record: Any = decode_json(read_bytes(path, max_bytes=_MAX_BYTES))
    except msgspec.DecodeError as error:
        raise InputError(str(error)) from error
    if not isinstance(record, dict):
        raise InputError("it is not an object")
    return IndexedResult(
        kind=str(record.get("schema", "")).removeprefix("flatout/"),
        path=place,
        page=None,
        written_s=path.stat().st_mtime,
        headline=headline(record),
    )


def _with_pages(results: list[IndexedResult], pages: dict[str, Path]) -> list[IndexedResult]:
    """Give each result its page; pages without a JSON file are listed alone."""
    of_folder: dict[str, list[IndexedResult]] = {}
    for result in results:
        of_folder.setdefault(os.path.dirname(result.path), []).append(result)
    merged: list[IndexedResult] = []
    free = dict(pages)
    for folder, members in of_folder.items():
        in_folder = [page for page in pages if os.path.dirname(page) == folder]
        for result in members:
            page = f"{result.path.removesuffix('.json')}.html"
            if page not in pages and len(members) == 1 and len(in_folder) == 1:
                page = in_folder[0]
            is_there = free.pop(page, None) is not None
            merged.append(msgspec.structs.replace(result, page=page if is_there else None))
    merged += [_of_page(place, path) for place, path in free.items()]
    return merged


def _of_page(place: str, path: Path) -> IndexedResult:
    title = _TITLE.search(_head(path).decode("utf-8", "replace"))
    text = html.unescape(title[1]) if title is not None else place
    return IndexedResult(
        kind="page", path=place, page=place, written_s=path.stat().st_mtime, headline=text.rpartition(" | ")[0] or text
    )
