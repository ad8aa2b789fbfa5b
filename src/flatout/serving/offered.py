"""Ask the server's own `--help` which options it has.

In: the server's command and the engine's table. Out: the text of its help; None if it cannot be had. The command is the
user's own up to the words that the engine is recognised by, so that the same installation is asked.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping

from flatout.serving.engine import Engine, recognised_until
from flatout.serving.words import ServerCommand

_LIMIT_S = 180.0
# A narrow terminal cuts the names of options, and colours split them.
_PLAIN = {"COLUMNS": "250", "NO_COLOR": "1", "TERM": "dumb"}


def help_command(engine: Engine, command: ServerCommand) -> tuple[str, ...]:
    until = recognised_until(engine, command.words)
    if until is None:
        is_interpreter = os.path.basename(command.words[0]).startswith("python")
        until = 2 if is_interpreter else 1
    return (*command.words[:until], *engine.help)


def help_text(engine: Engine, command: ServerCommand, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return what the server's help prints; None if it does not start, fails, or takes too long."""
    try:
        finished = subprocess.run(
            help_command(engine, command),
            env={**environment, **command.environment, **_PLAIN},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    text = finished.stdout + finished.stderr
    return text.decode(errors="replace") if finished.returncode == 0 else None
