"""Write the result of a compression as JSON, with the envelope that all objects of Flatout have."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.compression import Compression
from flatout.report.json import enveloped_json

SCHEMA = "flatout/compression"
VERSION = 1


def compression_json(result: Compression, command: Sequence[str]) -> bytes:
    return enveloped_json(SCHEMA, VERSION, command, result)
