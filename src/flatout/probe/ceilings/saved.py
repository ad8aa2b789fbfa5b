"""Where ceilings are kept, and reading them back."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.records.ceilings import Ceilings

SCHEMA = "flatout/ceilings"
VERSION = 1


class _Envelope(msgspec.Struct):
    schema: str
    version: int


def saved_path(host: str, environment: Mapping[str, str] = os.environ) -> Path:
    """$XDG_STATE_HOME/flatout/ceilings/HOST.json, of a host by its name."""
    state = environment.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state, "flatout", "ceilings", re.sub(r"[^\w.-]", "_", host)[:200] + ".json")


def load_ceilings(path: Path) -> Ceilings:
    """What `flatout bench` wrote. InputError: no such file, no JSON, another schema or version."""
    hint = "make one with `flatout bench --out FILE`"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}", hint=hint) from error
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        if (envelope.schema, envelope.version) != (SCHEMA, VERSION):
            raise InputError(
                f"`{path}` must have the schema `{SCHEMA}` {VERSION}, but has `{envelope.schema}` {envelope.version}",
                hint=hint,
            )
        return msgspec.json.decode(data, type=Ceilings)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"`{path}` holds no ceilings: {error}", hint=hint) from error


def known_ceilings(hosts: set[str], environment: Mapping[str, str] = os.environ) -> dict[str, Ceilings]:
    """What was saved of these hosts; a file that cannot be read is none."""
    found = {}
    for host in hosts:
        path = saved_path(host, environment)
        if path.is_file():
            try:
                found[host] = load_ceilings(path)
            except InputError:
                continue
    return found
