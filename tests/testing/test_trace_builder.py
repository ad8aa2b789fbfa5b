"""The trace builder: what it puts into the table and into Kineto JSON."""

from __future__ import annotations

import json
from pathlib import Path

from flatout.records.events import NULL, Kind
from flatout.testing import TraceBuilder, write_traces


def test_times_are_kept_as_integer_nanoseconds_on_top_of_the_base_time() -> None:
    table = TraceBuilder(base_ns=1_000_000).op("aten::mm", 1.234, 0.001).to_table()
    assert table.start_ns.tolist() == [1_001_234]
    assert table.duration_ns.tolist() == [1]


def test_events_are_sorted_by_start_and_the_longer_first() -> None:
    table = TraceBuilder().op("c", 5, 1).op("b", 0, 1).op("a", 0, 2).to_table()
    assert [table.names[i] for i in table.name] == ["a", "b", "c"]


def test_a_launch_and_its_kernel_share_a_correlation_and_an_operator_its_external_id() -> None:
    table = TraceBuilder().launch("gemm", 0, 1, 2, 3, op="aten::mm", shapes=[[8, 4], [4, 2]]).to_table()
    assert table.kind.tolist() == [Kind.CPU_OP, Kind.RUNTIME, Kind.KERNEL]
    assert table.correlation.tolist() == [NULL, 2, 2]
    assert table.external_id.tolist() == [1, 1, 1]
    assert table.shapes == ("[[8,4],[4,2]]",)


def test_a_collective_has_its_arguments_on_the_operator_and_on_the_kernel() -> None:
    table = TraceBuilder(rank=1, world_size=4).collective("_allgather_base", 0, 2, 3, num_elements=8).to_table()
    assert [Kind(kind) for kind in table.kind[table.collective != NULL]] == [Kind.CPU_OP, Kind.KERNEL]
    (args,) = table.collectives
    assert (args.operation, args.group_ranks, args.num_output_elements) == ("_allgather_base", (0, 1, 2, 3), 32)


def test_a_trace_without_device_events_is_of_the_cpu() -> None:
    meta = TraceBuilder().op("aten::mm", 0, 1).to_table().meta
    assert (meta.device_name, meta.backend) == (None, "gloo")


def test_json_has_microseconds_with_at_most_three_decimals(tmp_path: Path) -> None:
    trace = TraceBuilder(rank=3, world_size=4, base_ns=1_790_857_026_000_000_000)
    trace.launch("gemm", 4959946743260.383, 0.001, 4959946743261.007, 1.5)
    (path,) = write_traces([trace], tmp_path)
    assert path.name == "rank3.json"
    written = json.loads(path.read_text())
    assert written["distributedInfo"]["rank"] == 3
    call, _, kernel, _ = written["traceEvents"]
    assert (call["cat"], call["ts"], call["dur"]) == ("cuda_runtime", 4959946743260.383, 0.001)
    assert kernel["args"] == {"device": 3, "stream": 7, "correlation": 1}
    assert [line["ph"] for line in written["traceEvents"]] == ["X", "s", "X", "f"]
