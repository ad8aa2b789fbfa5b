"""The lines of an XLA profile, as both of its files have them: what `xspace` and `jax_trace` return.

A *plane* is a device or a host, and a *line* is one of its streams or threads. Columns are numpy arrays of one length;
a number that an event lacks is `NULL`.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from flatout.records.events import NULL, Quality

# The numbers and texts of an event that are used, by the names that XLA gives them.
NUMBERS = ("step_num", "correlation_id", "run_id", "device_ordinal", "num_bytes")
TEXTS = ("hlo_op", "memcpy_details", "memset_details")


class XlaLine(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The events of one line in the order of the file, in ns since 1970, or since the profile began."""

    plane: str
    name: str
    event_name: NDArray[np.int32]  # index into XlaProfile.names
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    numbers: dict[str, NDArray[np.int64]]  # those of NUMBERS that some event has
    texts: dict[str, NDArray[np.int32]]  # those of TEXTS that some event has: index into XlaProfile.names

    def number(self, name: str) -> NDArray[np.int64]:
        """Return a number of all events; NULL where it is not recorded."""
        return self.numbers.get(name, np.full(len(self.start_ns), NULL, np.int64))

    def text(self, name: str) -> NDArray[np.int32]:
        """Return a text of all events, as an index into the names; NULL where it is not recorded."""
        return self.texts.get(name, np.full(len(self.start_ns), NULL, np.int32))


class XlaProfile(msgspec.Struct, frozen=True, kw_only=True):
    """One profile: its lines, and the dictionary that their names refer to."""

    lines: tuple[XlaLine, ...]
    names: tuple[str, ...]
    hostname: str | None = None
    process: str | None = None
    start_ns: int | None = None  # unix time of the profile's start, already added to all times; None if not recorded
    device_names: dict[str, str] = {}  # vendors of the devices, by plane
    quality: tuple[Quality, ...] = ()
    num_events: int = 0  # in the file, of all planes
