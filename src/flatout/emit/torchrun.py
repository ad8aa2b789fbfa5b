"""A launch script: the environment, then the user's own command with what was tuned in it."""

from __future__ import annotations

import shlex

from flatout.emit.command import named_head, script_lines, tuned_command, unplaced
from flatout.emit.heading import commented
from flatout.records.tuning import Emitted, Tuning


def emit(tuning: Tuning) -> Emitted:
    """`flatout run` sets environment and arguments itself, so with patches the line is its alone."""
    exports = "" if tuning.needs_patches else exported(tuning)
    words = tuned_command(tuning)
    text = f"#!/usr/bin/env bash\n{commented(tuning)}set -euo pipefail\n{exports}exec {script_lines(words)}\n"
    return Emitted(path="launch.sh", text=text, notes=(*unplaced(tuning), *named_head(words)))


def exported(tuning: Tuning) -> str:
    return "".join(f"export {n}={shlex.quote(v)}\n" for n, v in sorted(tuning.changes.environment.items()))
