"""Write a comparison as the JSON of the contract `flatout/comparison`, version 1."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.comparison import Comparison
from flatout.report.json import enveloped_json

SCHEMA = "flatout/comparison"
VERSION = 1


def comparison_json(result: Comparison, command: Sequence[str]) -> bytes:
    return enveloped_json(SCHEMA, VERSION, command, result)
