"""Writes down how long each file of tests took: `python benchmarks/suite_durations.py build/junit.xml`.

In: the JUnit file of one run of the whole suite (`pytest --junitxml`). Out: `tests/durations.json`, the seconds of each
file, by which `tests/conftest.py` begins the longest first; and on standard output a Markdown table of the rooms and
of the longest files, for `benchmarks/README.md`. No test passes or fails by it.
"""

from __future__ import annotations

import argparse
import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "durations.json"
NUM_LONGEST = 12


def seconds_by_file(junit: Path) -> dict[str, float]:
    seconds: Counter[str] = Counter()
    for case in ElementTree.parse(junit).iter("testcase"):
        file = _file(case.get("classname", ""))
        if file is not None:
            seconds[file] += float(case.get("time", "0"))
    return {file: round(total, 1) for file, total in seconds.most_common()}


def _file(class_name: str) -> str | None:
    """The file of `tests.keep.test_run_kept`, which a class of tests may follow."""
    words = class_name.split(".")
    for end in range(len(words), 0, -1):
        file = "/".join(words[:end]) + ".py"
        if (ROOT / file).is_file():
            return file
    return None


def table(seconds: dict[str, float]) -> str:
    rooms: Counter[str] = Counter()
    for file, total in seconds.items():
        rooms[file.split("/")[1]] += total
    lines = ["| Room | Seconds |", "| --- | ---: |"]
    lines += [f"| {room} | {total:.0f} |" for room, total in rooms.most_common() if total >= 1]
    lines += ["", "| Longest files | Seconds |", "| --- | ---: |"]
    lines += [f"| `{file}` | {total:.0f} |" for file, total in list(seconds.items())[:NUM_LONGEST]]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("junit", type=Path, help="what `pytest --junitxml` wrote")
    seconds = seconds_by_file(parser.parse_args().junit)
    TABLE.write_text(json.dumps(seconds, indent=1) + "\n")
    print(table(seconds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
