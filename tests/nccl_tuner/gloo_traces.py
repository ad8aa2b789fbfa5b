"""Traces of a job on CPU ranks, with the shapes of its all-reduces, as torch's profiler records them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from flatout.testing import TraceBuilder

NUM_STEPS, STEP_US = 2, 1000.0


def write_gloo_traces(folder: Path, num_ranks: int, sizes: Sequence[int]) -> list[Path]:
    """Write one trace per rank: in each step an all-reduce of each of these numbers of bytes, one after the other."""
    paths = []
    for rank in range(num_ranks):
        trace = TraceBuilder(rank=rank, world_size=num_ranks)
        for step in range(NUM_STEPS):
            begin = step * STEP_US
            trace.step(step + 1, begin, STEP_US).op("aten::mm", begin + 10, 200)
            for number, _ in enumerate(sizes):
                trace.annotation("gloo:all_reduce", begin + 300 + 100 * number, 90)
        path = trace.write(folder / f"rank{rank}.json")
        content = json.loads(path.read_text())
        _add_shapes(content["traceEvents"], sizes)
        content["distributedInfo"] = {"backend": "gloo", "rank": rank, "world_size": num_ranks}
        path.write_text(json.dumps(content))
        paths.append(path)
    return paths


def _add_shapes(events: list[dict[str, object]], sizes: Sequence[int]) -> None:
    calls = [event for event in events if event["name"] == "gloo:all_reduce"]
    for number, call in enumerate(calls):
        shape = [sizes[number % len(sizes)] // 4]
        arguments = call.setdefault("args", {})
        assert isinstance(arguments, dict)
        arguments.update({"Input Dims": [shape], "Input type": ["float"]})
