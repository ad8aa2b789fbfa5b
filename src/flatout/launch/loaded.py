"""Build the environment in which a job's Python processes load `inside/`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

# its sitecustomize is found before the user's, and calls that
STARTUP = Path(__file__).parent.parent / "inside" / "startup"


def with_inside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with our start-up folder first on PYTHONPATH; FLATOUT_* variables configure `inside/`."""
    paths = [str(STARTUP), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
