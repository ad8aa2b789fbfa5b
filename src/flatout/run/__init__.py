"""One training command, with the changes of a tuned.toml, kept alive where that is asked for.

`RunRequest` says what is asked for, `prepare` applies the changes to the command, and `run` starts it: as it is, or
kept alive by `kept`. Messages to the user go to standard error.
"""

from __future__ import annotations

from flatout.run.command import PreparedCommand, prepare
from flatout.run.job import run
from flatout.run.request import RunRequest

__all__ = ["PreparedCommand", "RunRequest", "prepare", "run"]
