"""Load the constants that Flatout ships, fitted to published runs, with their covariance: `constants.json`.

`flatout plan evaluate RUNS.csv --fit FILE` writes the file, which records the number of runs of each source.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.plan.calibrate import Calibration
from flatout.plan.constants import NAMES

FILE = Path(__file__).with_name("constants.json")


class StoredConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `constants.json`."""

    schema: str
    num_runs: int
    sources: tuple[str, ...]
    logs: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]


def shipped(path: Path = FILE) -> Calibration:
    """Return the constants of this version."""
    try:
        stored = decode_json(read_bytes(path), type=StoredConstants)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"`{path}` holds no constants of the planner: {error}") from error
    return Calibration(
        logs=np.array([stored.logs[name] for name in NAMES]),
        covariance=np.array(stored.covariance),
        effects=np.zeros(0),
        num_runs=stored.num_runs,
    )


def shipped_sources(path: Path = FILE) -> tuple[str, ...]:
    """Return the sources that the constants of this version were fitted to."""
    return decode_json(read_bytes(path), type=StoredConstants).sources
