"""Ask the Python of the user's script which packages it can import; nothing is imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence

from flatout.compress.commands import UserCommand

_PYTHON = re.compile(r"python[\d.]*")
_TIMEOUT_S = 60.0
_ASK = "import importlib.util, json, sys; print(json.dumps([bool(importlib.util.find_spec(n)) for n in sys.argv[1:]]))"


def installed_packages(command: UserCommand, packages: Sequence[str]) -> dict[str, bool]:
    """Return whether each package can be found; {} if the command starts another program than Python."""
    program = command.words[0]
    if not packages or not _PYTHON.fullmatch(os.path.basename(program)):
        return {}
    try:
        done = subprocess.run(
            [program, "-c", _ASK, *packages],
            env={**os.environ, **command.variables},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
        return dict(zip(packages, json.loads(done.stdout), strict=True))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
