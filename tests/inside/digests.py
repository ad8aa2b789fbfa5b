"""A script that prints a digest of each file that it sees in the working folder, without the folder of the tuning."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def digests() -> dict[str, str]:
    paths = sorted(path for path in Path(".").rglob("*") if path.is_file() and path.parts[0] != "out")
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest()[:12] for path in paths}


if __name__ == "__main__":
    print(json.dumps(digests()))
