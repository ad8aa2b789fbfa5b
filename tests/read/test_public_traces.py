"""Real traces of every age and vendor, compared with what Python's own `json` finds in them."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.read.conftest import read_path
from tests.shared_data import SHARED

from flatout.errors import InputError
from flatout.read import assign_ranks, open_sources, read_trace
from flatout.records.events import COLUMNS, GPU_WORK, NULL, EventTable, Kind

EXACT = SHARED / "public_traces" / "exact_values.json"
FILES = sorted(json.loads(EXACT.read_text())["files"]) if EXACT.exists() else []
ALONE = [name for name in FILES if ".tar.gz:" not in name] + [
    "hta/cpu_only.rank-34.json.gz",
    "hta/distributed_info_not_found.json.gz",
]
if not FILES:
    ALONE = []
_MAX_COMPARED_BYTES = 20 << 20  # Python's json needs seconds for more

KINDS = {
    "cpu_op": Kind.CPU_OP,
    "Operator": Kind.CPU_OP,
    "user_annotation": Kind.USER_ANNOTATION,
    "gpu_user_annotation": Kind.GPU_ANNOTATION,
    "cuda_runtime": Kind.RUNTIME,
    "cuda_driver": Kind.RUNTIME,
    "Runtime": Kind.RUNTIME,
    "kernel": Kind.KERNEL,
    "Kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.MEMCPY,
    "Memcpy": Kind.MEMCPY,
    "gpu_memset": Kind.MEMSET,
    "Memset": Kind.MEMSET,
    "cuda_sync": Kind.SYNC,
    "overhead": Kind.OVERHEAD,
}


def ns(us: Any) -> int:
    return round(Decimal(us) * 1000)


def rows_of_json(text: bytes) -> Counter[tuple[Any, ...]]:
    trace = json.loads(text, parse_float=Decimal, strict=False)
    base_ns = trace.get("baseTimeNanoseconds", 0)
    rows: Counter[tuple[Any, ...]] = Counter()
    for e in trace["traceEvents"]:
        if e["ph"] != "X" or e["cat"] not in KINDS:
            continue
        kind = KINDS[e["cat"]]
        args = e.get("args", {})
        if kind == Kind.CPU_OP and e["name"].startswith(("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.")):
            kind = Kind.USER_ANNOTATION
        on_device = kind in GPU_WORK or kind == Kind.SYNC
        external_id = args.get("External id", args.get("external id", NULL))
        if external_id == 0 and kind not in (Kind.CPU_OP, Kind.USER_ANNOTATION):
            external_id = NULL
        device, stream = (args["device"], args["stream"]) if on_device else (NULL, NULL)
        if kind == Kind.GPU_ANNOTATION:
            device, stream = e["pid"], e["tid"]
        rows[
            int(kind),
            e["name"],
            base_ns + ns(e["ts"]),
            ns(e["dur"]),
            (str(e["pid"]), str(e["tid"])),
            device,
            stream,
            args.get("correlation", NULL),
            external_id,
            args.get("bytes", NULL) if kind in (Kind.MEMCPY, Kind.MEMSET) else NULL,
            json.dumps(args["Input Dims"], separators=(",", ":")) if "Input Dims" in args else None,
            args.get("Collective name") or reduced_on_host(e["name"], kind, args),
        ] += 1
    return rows


def reduced_on_host(name: str, kind: Kind, args: dict[str, Any]) -> str | None:
    """Return the all-reduce of a CPU job, of whose tensor the shape and the type were recorded."""
    is_all_reduce = kind == Kind.USER_ANNOTATION and name == "gloo:all_reduce"
    return "all_reduce" if is_all_reduce and "Input type" in args else None


def rows_of_table(table: EventTable) -> Counter[tuple[Any, ...]]:
    python = table.kind == Kind.PYTHON
    columns = [getattr(table, column)[~python].tolist() for column in COLUMNS if column != "sequence"]
    rows = zip(*columns, strict=True)
    return Counter(
        (
            r[0],
            table.names[r[1]],
            r[2],
            r[3],
            table.threads[r[4]],
            *r[5:10],
            None if r[10] == NULL else table.shapes[r[10]],
            None if r[11] == NULL else table.collectives[r[11]].operation,
        )
        for r in rows
    )


@pytest.mark.parametrize("name", ALONE)
def test_a_public_trace_reads_as_json_reads_it(public_traces: Path, name: str) -> None:
    text = gzip.decompress((public_traces / name).read_bytes())
    table = read_path(public_traces / name)
    if len(text) <= _MAX_COMPARED_BYTES:
        assert rows_of_table(table) == rows_of_json(text)
    expected = json.loads(EXACT.read_text())["files"].get(name)
    if expected is not None:
        assert table.is_kind(*GPU_WORK).sum() == expected["n"]
    num_phases = text.count(b'"ph":')
    assert table.num_events + sum(count for _, count in table.dropped) == num_phases


def test_the_ranks_of_an_archive_read_and_are_known(public_traces: Path) -> None:
    path = public_traces / "param_dlrm_8xV100" / "dlrm_kineto.tar.gz"
    expected = {
        name.rpartition(":")[2]: values["n"]
        for name, values in json.loads(EXACT.read_text())["files"].items()
        if ".tar.gz:" in name
    }
    with tarfile.open(path) as archive:
        texts = {Path(m.name).name: archive.extractfile(m).read() for m in archive if m.isreg()}  # type: ignore[union-attr]
    with open_sources([path]) as sources:
        tables = [read_trace(source) for source in sources]
        assert [source.rank_hint for source in sources] == list(range(8))
        for source, table in zip(sources, tables, strict=True):
            member = Path(source.name).name
            assert table.is_kind(*GPU_WORK).sum() == expected[member]
            assert rows_of_table(table) == rows_of_json(texts[member])
    assert assign_ranks([table.meta for table in tables]).ranks == tuple(range(8))


def test_what_files_say_of_themselves(public_traces: Path) -> None:
    hta, tracelens = public_traces / "hta", public_traces / "tracelens"
    nccl = read_path(hta / "nccl_data.json.gz")
    assert (nccl.meta.rank, nccl.meta.world_size, nccl.meta.backend) == (0, 2, "nccl")
    assert nccl.meta.device_name == "NVIDIA A100-PG509-200"
    assert {c.operation for c in nccl.collectives} >= {"allreduce", "wait"}
    assert any(c.group_ranks == (0, 1) and c.num_input_elements == 6_563_840 for c in nccl.collectives)
    assert any("4,181 events outside" in note.problem for note in nccl.quality)
    assert read_path(hta / "df_index_resolver.json.gz").meta.device_name == "Tesla V100-SXM2-32GB"
    # the GPU events are on device 2 of the properties
    assert read_path(hta / "mi250_minitoy_train_ROCm6_2_kineto.json.gz").meta.device_name == "AMD Radeon Graphics"
    cpu_only = read_path(hta / "cpu_only.rank-34.json.gz")
    assert (cpu_only.meta.rank, cpu_only.meta.world_size, cpu_only.meta.device_name) == (34, 300, None)
    assert read_path(hta / "ns_resolution.rank-0.json.gz").meta.hostname == "twshared39868.02.pnb3.facebook.com"
    assert read_path(tracelens / "mi300_vllm_decode_graph_execution.json.gz").meta.device_name is None  # "" in the file


def test_no_public_trace_needs_a_repair(public_traces: Path) -> None:
    for name in ALONE:
        text = "\n".join(note.problem for note in read_path(public_traces / name).quality)
        assert "duration" not in text and "read" not in text and "unknown" not in text, name


def test_host_operators_with_a_stream_are_not_on_the_device(public_traces: Path) -> None:
    table = read_path(public_traces / "hta" / "triton_example.json.gz")
    host = table.is_kind(Kind.CPU_OP, Kind.RUNTIME, Kind.USER_ANNOTATION)
    assert (table.stream[host] == NULL).all() and (table.device[host] == NULL).all()
    assert table.is_kind(*GPU_WORK).sum() == 1


def test_other_json_is_refused_with_a_reason(public_traces: Path) -> None:
    with pytest.raises(InputError, match="6,866 events, but none of"):
        read_path(public_traces / "bytedance_straggler" / "timeline-ST.json.gz")
