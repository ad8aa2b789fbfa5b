"""Ask the package index for a wheel of every core dependency, for each Python that Flatout allows and one beyond.

    python packaging/check_wheels.py 3.11 3.12 3.13 3.14 --out benchmarks/results/core_wheels.json

It downloads the wheels (55 MB for each Python) into a temporary folder and builds nothing. Exit code 1: one is missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PLATFORM = "manylinux_2_28_x86_64"


def core_dependencies() -> list[str]:
    """Return the core requirements of `pyproject.toml`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def downloaded(python: str) -> dict[str, Any]:
    """Return the wheels that the index gives for the core and its needs on this Python, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        platforms = [word for name in (PLATFORM, "manylinux2014_x86_64") for word in ("--platform", name)]
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
            *("--only-binary=:all:", "--python-version", python, *platforms, "--dest", folder),
            *core_dependencies(),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = sorted(path.name for path in Path(folder).glob("*.whl"))
        num_bytes = sum(path.stat().st_size for path in Path(folder).glob("*.whl"))
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return {
        "python": python,
        "is_complete": done.returncode == 0,
        "wheels": wheels,
        "bytes": num_bytes,
        "errors": errors,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", nargs="+")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    results = [downloaded(python) for python in arguments.python]
    for result in results:
        state = "complete" if result["is_complete"] else "; ".join(result["errors"][:2])
        print(f"Python {result['python']}: {len(result['wheels'])} wheels, {result['bytes'] / 1e6:.0f} MB: {state}")
    if arguments.out is not None:
        content = {"platform": PLATFORM, "dependencies": core_dependencies(), "results": results}
        arguments.out.write_text(json.dumps(content, indent=1) + "\n")
    return 0 if all(result["is_complete"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
