"""Write a diagnosis as the JSON of the contract `flatout/diagnosis`, version 2, and read it back.

Diagnoses of version 1 are read too. Their rates and MFU were those of the regular step, and they have no totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.errors import InputError
from flatout.input_files import decode_json, open_file, read_bytes
from flatout.records.diagnosis import PART_NAMES, Diagnosis
from flatout.report.streams import safe_json
from flatout.secrets import masked_command

SCHEMA = "flatout/diagnosis"
VERSION = 2
READABLE_VERSIONS = (1, 2)


class _Envelope(msgspec.Struct):
    schema: str
    version: int


def diagnosis_json(diagnosis: Diagnosis, command: Sequence[str], *, pretty: bool = True) -> bytes:
    """Return the contract's object: schema, version, tool version, command (secrets masked), then the diagnosis."""
    return enveloped_json(SCHEMA, VERSION, command, diagnosis, pretty=pretty)


def enveloped_json(
    schema: str, version: int, command: Sequence[str], record: msgspec.Struct, *, pretty: bool = True
) -> bytes:
    """Return a record as one JSON object with the envelope that all objects of Flatout have."""
    content: dict[str, Any] = {
        "schema": schema,
        "version": version,
        "tool_version": __version__,
        "command": list(masked_command(command)),
    }
    names = zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True)
    values = {key: getattr(record, field) for field, key in names}
    content |= {key: value for key, value in values.items() if value is not msgspec.UNSET}
    data = msgspec.json.encode(content, enc_hook=_plain)
    if pretty:
        data = msgspec.json.format(data, indent=2) + b"\n"
    return safe_json(data.decode()).encode()


def is_diagnosis(path: str | Path) -> bool:
    """Return whether a file begins like a file written by `diagnosis_json`."""
    try:
        with open_file(Path(path)) as file:
            return b'"flatout/' in file.read(200)
    except OSError:
        return False


def read_diagnosis(path: str | Path) -> Diagnosis:
    """Read a file written by `diagnosis_json`.

    Raises InputError if the file is missing or not JSON, has the wrong schema or version, or lacks a key.
    """
    try:
        data = read_bytes(Path(path))
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from error
    hint = "create one with `flatout diagnose PATH --json > FILE`"
    try:
        envelope = decode_json(data, type=_Envelope)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` is not a diagnosis: {error}", hint=hint) from error
    if envelope.schema != SCHEMA:
        raise InputError(f"`{path}` must have the schema `{SCHEMA}`, but has `{envelope.schema}`", hint=hint)
    if envelope.version not in READABLE_VERSIONS:
        readable = " and ".join(map(str, READABLE_VERSIONS))
        raise InputError(
            f"`{path}` has version {envelope.version} of its schema, but this Flatout ({__version__}) reads {readable}",
            hint="use the Flatout that wrote it, or diagnose the traces again",
        )
    try:
        diagnosis = decode_json(data, type=Diagnosis)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InputError(f"`{path}` breaks the schema `{SCHEMA}`: {error}", hint=hint) from error
    _check_parts(path, diagnosis, hint)
    return _without_totals(diagnosis) if envelope.version == 1 else diagnosis


def _without_totals(diagnosis: Diagnosis) -> Diagnosis:
    """Return a diagnosis of version 1 with its rates in the fields of the regular step, which they were measured in."""
    job = diagnosis.job
    if job.reasons is msgspec.UNSET:
        return diagnosis
    reason = "a diagnosis of version 1 has only the regular step"
    reasons = {**job.reasons, "samples_per_s": reason, "tokens_per_s": reason, "mfu": reason}
    job = msgspec.structs.replace(
        job,
        samples_per_s=None,
        tokens_per_s=None,
        mfu=None,
        regular_step_s=job.untraced_step_s,
        regular_samples_per_s=job.samples_per_s,
        regular_tokens_per_s=job.tokens_per_s,
        regular_mfu=job.mfu,
        reasons=reasons,
    )
    return msgspec.structs.replace(diagnosis, job=job)


def _check_parts(path: str | Path, diagnosis: Diagnosis, hint: str) -> None:
    for rank in diagnosis.ranks:
        for parts_s in (rank.parts_s, *(step.parts_s for step in rank.steps)):
            if set(parts_s) != set(PART_NAMES):
                wrong = ", ".join(sorted(set(parts_s) ^ set(PART_NAMES)))
                raise InputError(
                    f"`{path}` breaks the schema `{SCHEMA}`: `parts_s` of rank {rank.rank} must have the parts of the "
                    f"contract, but these are missing or unknown: {wrong}",
                    hint=hint,
                )


def _plain(value: Any) -> Any:
    """Convert the numpy numbers and arrays that evidence can contain."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise NotImplementedError(f"{type(value).__name__} cannot be encoded as JSON")
