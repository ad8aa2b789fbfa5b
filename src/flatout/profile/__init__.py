"""A command in, a recording out: the job with `inside/` loaded, and this machine sampled beside it.

`record` runs the command; `read_recording` reads a recording again, alone, later, on another machine.
"""

from __future__ import annotations

from flatout.profile.read_recording import is_recording, read_recording
from flatout.profile.record import Options, record

__all__ = ["Options", "is_recording", "read_recording", "record"]
