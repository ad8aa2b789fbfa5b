"""Choose where ceilings are saved, and read them back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.records.ceilings import Ceilings

SCHEMA = "flatout/ceilings"
VERSION = 1


class _Envelope(msgspec.Struct):
    schema: str
    version: int


def saved_path(host: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of a host's saved ceilings: $XDG_STATE_HOME/flatout/ceilings/HOST.json."""
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state, "flatout", "ceilings", re.sub(r"[^\w.-]", "_", host)[:200] + ".json")


def load_ceilings(path: Path) -> Ceilings:
    """Read what `flatout bench` wrote. Raises InputError if it is missing, or not JSON of this schema and version."""
    hint = "create one with `flatout bench --out FILE`"
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", hint=hint) from error
    try:
        envelope = decode_json(data, type=_Envelope)
        if (envelope.schema, envelope.version) != (SCHEMA, VERSION):
            raise InputError(
                f"`{path}` must have the schema `{SCHEMA}` {VERSION}, but has `{envelope.schema}` {envelope.version}",
                hint=hint,
            )
        return decode_json(data, type=Ceilings)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"`{path}` holds no ceilings: {error}", hint=hint) from error


def known_ceilings(hosts: set[str], environment: Mapping[str, str] = os.environ) -> dict[str, Ceilings]:
    """Return the saved ceilings of these hosts; a file that cannot be read is skipped."""
    found = {}
    for host in hosts:
        path = saved_path(host, environment)
        if path.is_file():
            try:
                found[host] = load_ceilings(path)
            except InputError:
                continue
    return found
