"""Read torch's flight recorder: identify the collective with a number from the records of the ranks that wait in it.

The recorder is on by default for NCCL in newer versions of torch, otherwise with TORCH_FR_BUFFER_SIZE; if it is off, or
no rank can answer, there are no records. Ranks return their records as JSON. The pickled dumps that NCCL's watchdog
writes are only reported by path, never read: unpickling could execute arbitrary code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File
from flatout.keep.heartbeats import HeartbeatSample

_PATIENCE_S, _POLL_S = 2.0, 0.05
_VARIABLES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_DEFAULT = "/tmp/nccl_trace_rank_"


class FlightRecord(msgspec.Struct, frozen=True, kw_only=True):
    profiling_name: str
    collective_seq_id: int
    process_group: tuple[str, ...]
    is_p2p: bool = False
    input_sizes: list[list[int]] = []
    input_dtypes: list[str] = []

    def describe(self) -> str:
        """Return the operation with its dtype and shape, e.g. `all_reduce of Float [3, 4]`."""
        name = self.profiling_name.rpartition(":")[2]
        sizes = [f"{kind} {size}" for kind, size in zip(self.input_dtypes, self.input_sizes, strict=False)]
        return f"{name} of {', '.join(sizes[:3])}" if sizes else name


class _Dump(msgspec.Struct, frozen=True, kw_only=True):
    entries: tuple[FlightRecord, ...] = ()


def ask_flight(folder: Path, pulses: Sequence[HeartbeatSample]) -> list[FlightRecord]:
    """Return the flight records of the ranks that answer within two seconds."""
    asked = [pulse for pulse in pulses if pulse.sequences and pulse.is_alive]
    if not asked:
        return []
    (folder / File.FLIGHT_REQUEST).touch()
    deadline = time.monotonic() + _PATIENCE_S
    found: dict[str, tuple[FlightRecord, ...]] = {}
    while len(found) < len(asked) and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        for pulse in asked:
            path = folder / File.FLIGHT.of(pulse.name)
            if pulse.name not in found and path.exists():
                try:
                    found[pulse.name] = decode_json(read_bytes(path), type=_Dump).entries
                except (OSError, msgspec.DecodeError):
                    found[pulse.name] = ()
    return [entry for entries in found.values() for entry in entries]


def collective(entries: Iterable[FlightRecord], group: str | None, sequence: int | None) -> FlightRecord | None:
    return next(
        (
            entry
            for entry in entries
            if not entry.is_p2p and entry.collective_seq_id == sequence and group in entry.process_group
        ),
        None,
    )


def dumps_since(unix_s: float, environment: Mapping[str, str]) -> list[Path]:
    """Return the files that NCCL's watchdog has written since."""
    prefix = Path(next((environment[name] for name in _VARIABLES if environment.get(name)), _DEFAULT))
    try:
        found = [path for path in prefix.parent.glob(f"{prefix.name}*") if path.stat().st_mtime >= unix_s]
    except OSError:
        return []
    return sorted(path for path in found if path.stat().st_uid == os.getuid())
