"""The environment in which a job's Python processes load `inside/`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

STARTUP = Path(__file__).parent.parent / "inside" / "startup"  # its sitecustomize comes before the user's, and calls it


def with_inside(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment with our start-up folder first on PYTHONPATH; FLATOUT_* variables say what to do."""
    paths = [str(STARTUP), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": os.pathsep.join(paths)}
