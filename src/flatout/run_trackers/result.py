"""Read a result for a run tracker: a file of JSON, the folder of a tuning or a comparison, or traces to diagnose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flatout.report.json import is_diagnosis
from flatout.track.result_file import read_record

_FILES = ("tuning.json", "comparison.json")  # in the folders that `tune` and `compare` write


def read_result_record(path: Path) -> dict[str, Any]:
    """Return the result as the dictionary that `--json` prints. Raise InputError if there is none."""
    for name in _FILES:
        if (path / name).is_file():
            return read_record(path / name)
    if is_diagnosis(path):
        return read_record(path)
    from flatout.api import diagnose

    return diagnose(path).to_dict()
