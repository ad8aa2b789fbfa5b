"""Start, watch and stop a job's processes: as if we were not there (`local`), or apart and limited (`limited`)."""

from __future__ import annotations

from flatout.launch.limited import run_limited
from flatout.launch.loaded import with_inside
from flatout.launch.local import Ended, end_like, run_local

__all__ = ["Ended", "end_like", "run_limited", "run_local", "with_inside"]
