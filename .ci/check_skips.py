"""Exit 1 if a test in a JUnit file was skipped for another reason than the lack of a GPU, or if none ran."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

ALLOWED = "needs a GPU"


def unexplained_skips(junit: str) -> list[str]:
    """One line for each skipped test whose reason does not begin with ALLOWED."""
    skips = []
    for case in ElementTree.parse(junit).iter("testcase"):
        for skipped in case.iter("skipped"):
            # A module skipped as a whole has its reason as `('file.py', 3, 'Skipped: reason')` in the text.
            reason = skipped.get("message") or ""
            if reason == "collection skipped":
                reason = (skipped.text or "").rpartition("Skipped: ")[2].rstrip("'\")")
            if not reason.startswith(ALLOWED):
                skips.append(f"{case.get('classname')}::{case.get('name')}: {reason}")
    return skips


def main(junit: str) -> int:
    """Print what was skipped without leave; the exit code."""
    num_tests = sum(1 for _ in ElementTree.parse(junit).iter("testcase"))
    if num_tests == 0:
        print("error: no test ran", file=sys.stderr)
        return 1
    skips = unexplained_skips(junit)
    for skip in skips:
        print(f"error: skipped: {skip}", file=sys.stderr)
    return 1 if skips else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
