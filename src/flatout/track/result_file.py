"""Read a result that a command printed with `--json`, and return its facts.

In: a path. Out: the facts, and a digest of the content. A file that is not such a result is an InputError.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.track.facts import ResultFacts
from flatout.track.sources import ceilings, comparison, diagnosis, ledger_report, recording_report, tuning

SOURCES: dict[str, Callable[[dict[str, Any]], ResultFacts]] = {
    module.SCHEMA: module.facts for module in (ceilings, comparison, diagnosis, ledger_report, recording_report, tuning)
}
_MAX_BYTES = 256 << 20
_HINT = "pass what `tune`, `compare`, `bench`, `profile` or `ledger` printed with --json"


class ResultFile(msgspec.Struct, frozen=True, kw_only=True):
    schema: str
    digest: str
    facts: ResultFacts


def read_result(path: Path) -> ResultFile:
    """Read a result. Raise InputError if it cannot be read, is not one of the known kinds, or has no measure."""
    data = _content(path)
    record = _decoded(path, data)
    schema = record.get("schema")
    source = SOURCES.get(schema) if isinstance(schema, str) else None
    if source is None:
        raise InputError(f"`{path}` has the schema `{schema}`, which has no measures to track", hint=_HINT)
    facts = source(record)
    if not facts.measures:
        raise InputError(f"`{path}` has no measure: all its times and rates are unknown", hint=_HINT)
    return ResultFile(schema=str(schema), digest=hashlib.sha256(data).hexdigest()[:32], facts=facts)


def read_record(path: Path) -> dict[str, Any]:
    """Return the object in a file that a command printed. Raise InputError if there is none."""
    return _decoded(path, _content(path))


def _content(path: Path) -> bytes:
    try:
        return read_bytes(path, max_bytes=_MAX_BYTES)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", hint=_HINT) from error


def _decoded(path: Path, data: bytes) -> dict[str, Any]:
    """Decode one JSON object. `profile` prints the job's output first, so the last line may be the object."""
    problems = []
    for text in (data, data.rstrip().rpartition(b"\n")[2]):
        try:
            record = decode_json(text)
        except msgspec.DecodeError as error:
            problems.append(str(error))
            continue
        if isinstance(record, dict):
            return record
        problems.append("it is not an object")
    is_job_output = not data.lstrip().startswith(b"{")
    problem = problems[-1] if is_job_output else problems[0]
    raise InputError(f"`{path}` is not the JSON of a result: {problem}", hint=_HINT)
