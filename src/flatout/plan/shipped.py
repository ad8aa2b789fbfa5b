"""Load the constants that Flatout ships, fitted to published runs, with their covariance: `constants.json`.

`flatout plan evaluate RUNS.csv --fit FILE` writes the file. It also has the constants fitted without each
source, with which an evaluation predicts that source's runs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import numpy as np

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes
from flatout.plan.calibrate import Calibration
from flatout.plan.constants import NAMES
from flatout.plan.memory import MemoryConstants

FILE = Path(__file__).with_name("constants.json")


class HeldOut(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The constants fitted without the runs of one source."""

    logs: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]
    memory: dict[str, float]


class StoredConstants(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `constants.json`."""

    schema: str
    num_runs: int
    sources: tuple[str, ...]
    logs: dict[str, float]
    covariance: tuple[tuple[float, ...], ...]
    memory: dict[str, float] = {}
    without: dict[str, HeldOut] = {}  # by source


def shipped(path: Path = FILE) -> Calibration:
    """Return the constants of this version."""
    stored = _read(path)
    return _calibration(stored.logs, stored.covariance, stored.num_runs)


def shipped_without(source: str, path: Path = FILE) -> tuple[Calibration, MemoryConstants] | None:
    """Return the constants of this version fitted without a source's runs; None if they were not fitted to any."""
    stored = _read(path)
    held_out = stored.without.get(source)
    if held_out is None:
        return None
    calibration = _calibration(held_out.logs, held_out.covariance, stored.num_runs)
    return calibration, MemoryConstants(**held_out.memory)


def _calibration(logs: dict[str, float], covariance: tuple[tuple[float, ...], ...], num_runs: int) -> Calibration:
    return Calibration(
        logs=np.array([logs[name] for name in NAMES]),
        covariance=np.array(covariance),
        effects=np.zeros(0),
        num_runs=num_runs,
    )


@cache
def _read(path: Path) -> StoredConstants:
    try:
        return decode_json(read_bytes(path), type=StoredConstants)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"`{path}` holds no constants of the planner: {error}") from error
