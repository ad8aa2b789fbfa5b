"""The shipped traces are few enough, and each is described."""

from __future__ import annotations

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_trace_is_described_and_they_take_at_most_12_mb() -> None:
    traces = list((EXAMPLES / "traces").iterdir())
    described = re.findall(r"^\| `(\w+)` \|", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(path.name.removesuffix(".tar.xz") for path in traces) == sorted(described)
    assert sum(path.stat().st_size for path in traces) <= 12_000_000
