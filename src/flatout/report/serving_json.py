"""Write the tuning of a server as JSON, with the envelope that all objects of Flatout have."""

from __future__ import annotations

from collections.abc import Sequence

from flatout.records.serving import ServingTuning
from flatout.report.json import enveloped_json

SCHEMA = "flatout/serving"
VERSION = 1


def serving_json(tuning: ServingTuning, command: Sequence[str]) -> bytes:
    """Return the object: the result with all its trials."""
    return enveloped_json(SCHEMA, VERSION, command, tuning)
