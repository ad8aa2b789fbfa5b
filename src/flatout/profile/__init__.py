"""Record a command: run it with `inside/` loaded while this machine is sampled.

`record` runs the command; `read_recording` reads a recording, later and on any machine.
"""

from __future__ import annotations

from flatout.profile.read_recording import is_recording, read_recording
from flatout.profile.record import RecordOptions, record

__all__ = ["RecordOptions", "is_recording", "read_recording", "record"]
