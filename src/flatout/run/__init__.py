"""Run one training command with the changes of a tuned.toml, and keep it alive if requested.

`RunRequest` holds the request, `prepare` applies the changes to the command, and `run` starts it: plainly, or
kept alive by `kept`. Messages to the user go to standard error.
"""

from __future__ import annotations

from flatout.run.command import PreparedCommand, prepare
from flatout.run.job import run
from flatout.run.request import RunRequest

__all__ = ["PreparedCommand", "RunRequest", "prepare", "run"]
