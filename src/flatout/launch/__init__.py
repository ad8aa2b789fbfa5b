"""Start, watch and stop a job's processes. So far: on this machine, as if Flatout were not there (`local`)."""

from __future__ import annotations

from flatout.launch.local import Ended, end_like, run_local

__all__ = ["Ended", "end_like", "run_local"]
