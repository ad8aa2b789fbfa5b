"""Build hook: put the man pages, which are made from the command line's parser, into the wheel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ManPages(BuildHookInterface):  # type: ignore[type-arg]
    """Write the pages before a wheel is built; an editable installation has none."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        sys.path[:0] = [str(root / "packaging"), str(root / "src")]
        from man_pages import write_pages

        for path in write_pages(root / "build" / "man"):
            build_data["shared_data"][str(path)] = f"share/man/man1/{path.name}"
