"""Count the events of XPlane files with `jax.profiler.ProfileData`, which the suite compares with.

    VENV/bin/python benchmarks/xplane_counts.py FILE... --out tests/read/golden/profile_data.json

A file may be an archive of `benchmarks/jax_labelled_jobs.py`. The result has, by file, plane and line: the number of
events, and the sum of their durations in ns. It needs jax; the tests that read the result do not.
"""

from __future__ import annotations

import argparse
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import jax
from jax.profiler import ProfileData


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    counts = {name: counts_of(data) for path in options.files for name, data in profiles(path)}
    result = {"source": f"jax.profiler.ProfileData of jax {jax.__version__}", "files": counts}
    options.out.write_text(json.dumps(result, indent=1) + "\n")


def profiles(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of a profile, or of each profile in an archive."""
    if not path.name.endswith(".tar.xz"):
        yield path.name, path.read_bytes()
        return
    with tarfile.open(path) as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            yield f"{path.name}/{member.name}", file.read()


def counts_of(data: bytes) -> dict[str, dict[str, list[int]]]:
    found: dict[str, dict[str, list[int]]] = {}
    for plane in ProfileData.from_serialized_xspace(data).planes:
        lines = found.setdefault(plane.name, {})
        for line in plane.lines:
            durations = [event.duration_ns for event in line.events]
            if not durations:
                continue
            before = lines.setdefault(line.name, [0, 0])
            lines[line.name] = [before[0] + len(durations), before[1] + round(sum(durations))]
    return found


if __name__ == "__main__":
    main()
