"""Write a launch script: the environment, then the user's command with the tuned arguments."""

from __future__ import annotations

import shlex

from flatout.emit.command import named_head, script_lines, tuned_command, unplaced
from flatout.emit.heading import commented
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    """Return the script. With patches, it only calls `flatout run`, which sets the environment and arguments itself."""
    exports = "" if tuning.needs_patches else exported(tuning)
    words = tuned_command(tuning)
    heading = commented(tuning, has_command=True)
    text = f"#!/usr/bin/env bash\n{heading}set -euo pipefail\n{exports}exec {script_lines(words)}\n"
    return Emitted(path="launch.sh", text=text, notes=(*unplaced(tuning), *named_head(words)))


def exported(tuning: Tuning) -> str:
    variables = sorted(tuning.changes.environment.items())
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables)
