"""Jobs of which something is missing: what cannot be known is said to be unknown, and nothing crashes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from flatout.attribute.job import attribute_job
from flatout.attribute.rank import attribute_rank
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.records.diagnosis import Diagnosis
from flatout.testing import TraceBuilder

TRACES = Path(__file__).parents[2] / "examples" / "traces"


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    with tarfile.open(TRACES / "pp_gpipe.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "pp_gpipe"


def parts(diagnosis: Diagnosis, rank: int) -> dict[str, float]:
    return next(r.parts_s for r in diagnosis.ranks if r.rank == rank)


def problems(diagnosis: Diagnosis) -> str:
    return "; ".join(note.problem for note in diagnosis.data_quality)


def test_a_pipeline_without_its_last_stage_is_diagnosed_and_its_neighbour_unknown(pipeline: Path) -> None:
    (pipeline / "rank3.json").unlink()
    diagnosis = diagnose_paths([pipeline]).diagnosis
    assert diagnosis.job.missing_ranks == (3,)
    assert parts(diagnosis, 2)["communication_unsplit"] > 0.1 * parts(diagnosis, 2)["compute"]
    assert parts(diagnosis, 0)["bubble"] > 0


def test_without_recorded_partners_sends_and_receives_are_no_collective_of_all_ranks(pipeline: Path) -> None:
    for path in pipeline.glob("rank*.json"):
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("name") != "record_param_comms"]
        path.write_text(json.dumps(trace))
    diagnosis = diagnose_paths([pipeline]).diagnosis
    assert not {f.name for f in diagnosis.findings if f.confidence == "high"} & {"straggler"}
    assert parts(diagnosis, 1)["communication_unsplit"] > 0
    assert "could not be matched" in problems(diagnosis)


def test_the_size_of_a_group_tells_of_missing_ranks_where_the_metadata_do_not() -> None:
    traces = [TraceBuilder(rank, 4) for rank in (0, 1)]
    for trace in traces:
        trace.step(1, 0, 100).collective("allreduce", 1, 10, 50, group_ranks=(0, 1, 2, 3))
    tables = [trace.to_table() for trace in traces]
    bare = [type(t)(**{**{f: getattr(t, f) for f in t.__struct_fields__}, "meta": _without_world(t)}) for t in tables]
    job = attribute_job([attribute_rank(table) for table in bare])
    assert (job.world_size, job.missing_ranks) == (4, (2, 3))


def _without_world(table: object) -> object:
    import msgspec

    return msgspec.structs.replace(table.meta, world_size=None)  # type: ignore[attr-defined]


def test_where_nothing_tells_the_number_of_ranks_it_is_said() -> None:
    trace = TraceBuilder(0, 2).step(1, 0, 100)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 10, 50, stream=19)
    table = trace.to_table()
    import msgspec

    timeline = attribute_rank(msgspec.structs.replace(table, meta=_without_world(table)))
    assert "no trace states how many ranks" in "; ".join(q.problem for q in attribute_job([timeline]).quality)


def test_a_host_that_launched_work_is_no_job_on_the_cpu() -> None:
    trace = TraceBuilder(0, 1).step(1, 0, 100).runtime("cudaLaunchKernel", 5, 5)
    (note,) = [q for q in attribute_rank(trace.to_table()).quality if "GPU" in q.problem]
    assert "the profiler lost them" in note.problem


def test_sequence_numbers_match_although_kernels_from_before_the_recording_have_none() -> None:
    """Rank 1's recording begins one collective later."""
    a, b = (TraceBuilder(rank, 2).step(1, 0, 1000) for rank in (0, 1))
    for trace in (a, b):
        trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", 0, 5, stream=19)
    for number in range(4):
        late = 40 if number == 2 else 0
        a.collective("allreduce", 50 + 200 * number, 100 + 200 * number, 60 + late, sequence=number)
        if number:
            b.collective("allreduce", 50 + 200 * number, 100 + late + 200 * number, 60, sequence=number)
    job = attribute_job([attribute_rank(trace.to_table()) for trace in (a, b)])
    launched = [m for m in job.matches if len(m.kernels) == 2 and 0 not in m.kernels.values()]
    assert [m.kernels for m in launched] == [{0: 2, 1: 1}, {0: 3, 1: 2}, {0: 4, 1: 3}]
