"""What benchmarks of kills share: their options, and a result that is printed and, if asked for, kept in a file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any


def kill_options(description: str | None, *, kills: int, seed: int) -> argparse.ArgumentParser:
    """Return a parser of the options, with these defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=kills)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--out", type=Path, help="write the result as JSON there, too")
    return parser


def keep(result: dict[str, Any], out: Path | None) -> None:
    text = json.dumps(result, indent=1)
    print(text)
    if out is not None:
        out.write_text(text + "\n")
