"""The folder in which this user's tuner plugins for NCCL are built: the only one whose plugins a job is given."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from flatout.inside.protocol import PLUGIN_NAME


def plugin_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder, in the user's cache."""
    cache = environment.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "flatout" / "nccl-tuner"


def is_own_plugin(library: str) -> bool:
    """Whether a library is Flatout's plugin by its name and its folder: a job runs the code of what it loads."""
    path = Path(library)
    return PLUGIN_NAME.part(path.name) is not None and path.parent == plugin_folder()
