"""Flatout as a library: the eight functions that the commands of these names call, and that notebooks and scripts can.

Each function takes what its command takes, returns the record behind `--json` (a class in `flatout.api.results`), and
raises a `FlatoutError` whose message is one line. Importing this package imports no stage and no numpy.
"""

from __future__ import annotations

from flatout.api.comparisons import diff
from flatout.api.compressions import compress
from flatout.api.jobs import compare, profile, tune
from flatout.api.models import plan, replay
from flatout.api.traces import diagnose

__all__ = ["compare", "compress", "diagnose", "diff", "plan", "profile", "replay", "tune"]
