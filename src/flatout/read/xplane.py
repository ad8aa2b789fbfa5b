"""Read an XSpace (`*.xplane.pb`) as an event table: JAX, TensorFlow's MirroredStrategy and Keras, PyTorch/XLA.

In: a `TraceSource`. Out: an `EventTable` of its only device, or of the one that `source.part` names. Devices of one
process are separate ranks: a file with several raises SeveralRanksError.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.read import wire
from flatout.read.processes import SeveralRanksError
from flatout.read.sources import TraceSource
from flatout.read.stream import ByteStream
from flatout.read.xla_devices import device_number, parts_of
from flatout.read.xla_lines import XlaProfile
from flatout.read.xla_table import xla_table
from flatout.read.xspace import read_xspace
from flatout.records.events import EventTable, Quality, TraceFormat

MAX_BYTES = 16 << 30  # of a file that is held in memory as a whole
_HINT = "pass the .xplane.pb that jax.profiler or the profiler of TensorFlow wrote"


def read_xplane(source: TraceSource) -> EventTable:
    """Read the file. Raises InputError if it has no events, and SeveralRanksError if it has several devices."""
    with ByteStream(Path(source.path), source.name) as stream:
        data = stream.read_all(MAX_BYTES, "record fewer steps", wire.PADDING)
        damage = stream.problem
    part = source.part

    def wants(plane: str) -> bool:
        number = device_number(plane)
        return number is None or part is None or number == part.device

    profile = _with_damage(read_xspace(data, wants), damage)
    if not profile.lines:
        raise InputError(f"{source.name} is an XLA profile without events", hint=_HINT)
    if part is None:
        parts = parts_of(profile)
        if parts:
            raise SeveralRanksError(f"{source.name} has the events of {len(parts)} devices", parts)
    return xla_table(profile, source.name, TraceFormat.XPLANE, part, source.rank_hint)


def _with_damage(profile: XlaProfile, damage: str | None) -> XlaProfile:
    if damage is None:
        return profile
    note = Quality(
        problem=f"the file could be read only in part: {damage}",
        effect="events after the damage are missing, and show as idle time",
        max_confidence="inconclusive",
    )
    return msgspec.structs.replace(profile, quality=(*profile.quality, note))
