"""JSON of rocprofv3 and timelines of Horovod: events of known content, the rank that was late, and damage."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.read.profiles import cpu_plane, xspace
from tests.read.rocprof_files import MS, horovod, jax_trace, rocprof

from flatout.attribute.rank import attribute_rank
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import InputError
from flatout.read import SeveralRanksError, TraceSource, read_trace
from flatout.records.events import EventTable, Kind, TraceFormat


def source_of(folder: Path, content: Any, name: str = "trace.json") -> TraceSource:
    path = folder / name
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(gzip.compress(data, 1, mtime=0) if name.endswith(".gz") else data)
    return TraceSource(path=str(path), name=name, size_bytes=path.stat().st_size)


def rows(table: EventTable) -> set[tuple[str, str, int, int]]:
    columns = (table.kind, table.name, table.start_ns, table.duration_ns)
    return {
        (Kind(kind).name, table.names[name], start // MS, duration // MS)
        for kind, name, start, duration in zip(*(column.tolist() for column in columns), strict=True)
    }


@pytest.mark.parametrize("name", ["results.json", "results.json.gz"])
def test_json_of_rocprof_has_kernels_copies_and_calls(tmp_path: Path, name: str) -> None:
    table = read_trace(source_of(tmp_path, rocprof(), name))
    assert table.meta.format == TraceFormat.ROCPROF
    assert {row for row in rows(table) if row[2] < 100} == {
        ("KERNEL", "gemm", 20, 30),
        ("KERNEL", "ncclDevKernel_AllReduce", 50, 20),
        ("MEMCPY", "Memcpy HtoD", 70, 5),
        ("RUNTIME", "hipLaunchKernel", 11, 1),
        ("RUNTIME", "hipMemcpyAsync", 12, 1),
        ("RUNTIME", "hipMemcpyAsync", 13, 1),
    }
    assert (table.meta.device_name, table.meta.hostname, table.meta.process) == ("MI300X", "node", "908")
    assert table.num_bytes[table.kind == Kind.MEMCPY].tolist() == [4096] * 3


def test_records_of_rocprof_are_the_same_in_blocks_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read_trace(source_of(tmp_path, rocprof(), "whole.json"))
    for size in (1, 200, 700):
        monkeypatch.setattr("flatout.read.rocprof.BLOCK_BYTES", size)
        table = read_trace(source_of(tmp_path, rocprof(), f"{size}.json"))
        assert rows(table) == rows(whole)
        assert table.correlation.tolist() == whole.correlation.tolist()


def test_gpus_of_one_process_are_ranks_and_launch_only_their_own_kernels(tmp_path: Path) -> None:
    source = source_of(tmp_path, rocprof((0, 2)))
    with pytest.raises(SeveralRanksError):
        read_trace(source)
    diagnosis = diagnose_paths([Path(source.path)]).diagnosis
    assert [rank.rank for rank in diagnosis.ranks] == [0, 2]
    assert not [note for note in diagnosis.data_quality if "lost" in note.problem]
    assert all(abs(sum(rank.parts_s.values()) - rank.window_s) < 1e-6 for rank in diagnosis.ranks)


def test_idle_time_is_unknown_where_no_call_was_traced_and_that_is_said(tmp_path: Path) -> None:
    timeline = attribute_rank(read_trace(source_of(tmp_path, rocprof(with_calls=False))))
    notes = " ".join(note.problem for note in timeline.quality)
    assert "calls of HIP were not traced" in notes
    diagnosis = diagnose_paths([tmp_path / "trace.json"]).diagnosis
    parts = diagnosis.ranks[0].parts_s
    assert parts["launch_latency"] == 0
    assert parts["unattributed"] == pytest.approx(0.090)  # two gaps of 45 ms: from the copy to the next kernel


def test_counts_of_a_published_file_are_those_of_json(shared_data: Path) -> None:
    path = shared_data / "frameworks" / "rocprof908.json.gz"
    process = json.loads(gzip.decompress(path.read_bytes()))["rocprofiler-sdk-tool"][0]
    dispatches = process["buffer_records"]["kernel_dispatch"]
    table = read_trace(TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size))
    assert table.num_events == len(dispatches) == 43_915
    total_ns = sum(each["end_timestamp"] - each["start_timestamp"] for each in dispatches)
    assert abs(int(table.duration_ns.sum()) - total_ns) < total_ns * 1e-3


def test_a_readiness_tick_of_horovod_is_lateness_of_its_rank(tmp_path: Path) -> None:
    source = source_of(tmp_path, horovod(late_rank=1, late_ms=30))
    diagnosis = diagnose_paths([Path(source.path)]).diagnosis
    assert [rank.rank for rank in diagnosis.ranks] == [0, 1, 2]
    assert diagnosis.job.num_steps == 4
    finding = diagnosis.findings[0]
    assert (finding.name, finding.ranks) == ("straggler", (1,))
    # Rank 0 is ready 30 ms before rank 1, and rank 2 is 28 ms; no wait counts while another tensor is reduced.
    waits = {rank.rank: rank.parts_s["wait"] / 4 for rank in diagnosis.ranks}
    assert waits[0] == pytest.approx(0.030, abs=0.001)
    assert waits[2] == pytest.approx(0.028, abs=0.001)
    assert waits[1] == pytest.approx(0.0, abs=0.001)
    for rank in diagnosis.ranks:
        assert abs(sum(rank.parts_s.values()) - rank.window_s) < 1e-6


def test_what_ranks_do_between_operations_of_horovod_is_unknown(tmp_path: Path) -> None:
    diagnosis = diagnose_paths([Path(source_of(tmp_path, horovod()).path)]).diagnosis
    for rank in diagnosis.ranks:
        known = {part for part, seconds in rank.parts_s.items() if seconds > 0}
        assert known <= {"wait", "transfer", "unattributed"}


def test_cached_operations_of_horovod_have_no_known_wait(tmp_path: Path) -> None:
    diagnosis = diagnose_paths([Path(source_of(tmp_path, horovod(cached_from=2)).path)]).diagnosis
    assert all(
        rank.parts_s["communication_unsplit"] == pytest.approx(4 * 0.0029, abs=0.005) for rank in diagnosis.ranks
    )
    assert any("HOROVOD_CACHE_CAPACITY=0" in note.effect for note in diagnosis.data_quality)


def test_a_json_trace_of_jax_has_the_events_of_its_xplane_and_its_losses_are_said(tmp_path: Path) -> None:
    table = read_trace(source_of(tmp_path, jax_trace(2048), "host.trace.json.gz"))
    assert (table.meta.format, table.meta.rank) == (TraceFormat.JAX_TRACE, 1)
    assert {row for row in rows(table) if row[2] < 50} == {
        ("USER_ANNOTATION", "ProfilerStep#0", 0, 50),
        ("USER_ANNOTATION", "flatout:data_loading (loader.py:3 __next__)", 1, 8),
        ("CPU_OP", "dot.1", 10, 16),
        ("USER_ANNOTATION", "xla:all_reduce", 26, 4),
    }
    notes = [note.problem for note in table.quality]
    assert "a trace.json.gz of XLA has less than the .xplane.pb that is written with it" in notes
    assert "the file does not say when its times begin" in notes


@pytest.mark.parametrize("odd", ["none", "1.5", "", " 7", 1.5, True, None, [1], str(1 << 70)])
def test_an_argument_that_is_no_integer_is_unknown_and_costs_no_event(tmp_path: Path, odd: object) -> None:
    trace = jax_trace()
    steps = [event for event in trace["traceEvents"] if event.get("name") == "train"]
    steps[0]["args"]["step_num"] = odd
    table = read_trace(source_of(tmp_path, trace, "host.trace.json"))
    marks = {name for name in table.names if name.startswith("ProfilerStep#")}
    assert marks == {"ProfilerStep#1", "ProfilerStep#2"}
    assert not any("unreadable" in note.problem or "could not be" in note.problem for note in table.quality)
    del steps[0]["args"]["step_num"]
    known = read_trace(source_of(tmp_path, trace, "known.trace.json"))
    assert known.num_events == table.num_events and (known.start_ns == table.start_ns).all()


def test_numbers_of_64_bits_are_read_from_texts(tmp_path: Path) -> None:
    trace = jax_trace()
    for event in trace["traceEvents"]:
        if "run_id" in event.get("args", {}):
            event["args"]["run_id"] = str(-(1 << 62) - int(event["args"]["run_id"]))
    table = read_trace(source_of(tmp_path, trace, "host.trace.json"))
    of_collectives = table.sequence[table.collective >= 0]
    assert len(set(of_collectives.tolist())) == 3 and (of_collectives >= 0).all()


def test_a_json_trace_of_jax_with_a_million_events_lacks_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    num_events = sum(event.get("ph") == "X" for event in jax_trace()["traceEvents"])
    for most, is_full in ((num_events + 1, False), (num_events, True)):
        monkeypatch.setattr("flatout.read.jax_trace.MOST_EVENTS", most)
        table = read_trace(source_of(tmp_path, jax_trace(), "host.trace.json"))
        assert any("stops writing" in note.problem for note in table.quality) == is_full


def test_the_xplane_is_read_and_the_json_of_the_same_recording_is_not(tmp_path: Path) -> None:
    source_of(tmp_path, jax_trace(), "host.trace.json.gz")
    (tmp_path / "host.xplane.pb").write_bytes(xspace(cpu_plane(0)))
    diagnosis = diagnose_paths([tmp_path]).diagnosis
    assert diagnosis.job.num_ranks == 1
    assert not [note for note in diagnosis.data_quality if "trace.json.gz" in note.problem]


@pytest.mark.parametrize("beside", ["", "host.trace.json.gz", "host.xplane.pb"])
def test_the_copy_that_jax_makes_for_perfetto_is_read_only_where_nothing_better_is(tmp_path: Path, beside: str) -> None:
    """A report: it has no metadata, and an empty event at its end, with which other tools fail (perfetto 6251)."""
    folder = tmp_path / "plugins" / "profile" / "2026_01_01"
    folder.mkdir(parents=True)
    copy = {key: value for key, value in jax_trace().items() if key != "metadata"}
    table = read_trace(source_of(folder, copy, "perfetto_trace.json.gz"))
    assert table.meta.format == TraceFormat.JAX_TRACE
    if beside.endswith(".pb"):
        (folder / beside).write_bytes(xspace(cpu_plane(0)))
    elif beside:
        source_of(folder, jax_trace(), beside)
    for path in (tmp_path, folder):
        job = diagnose_paths([path]).diagnosis.job
        assert (job.num_ranks, job.num_steps) == (1, 3)


def test_a_negotiation_that_never_ended_costs_its_operation_and_no_more(tmp_path: Path) -> None:
    events = horovod()
    begin = {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1000, "pid": 3}
    torn = [begin, {"ph": "B", "name": "ALLREDUCE", "ts": 1100, "pid": 3}]
    torn += [{"ph": "X", "name": name, "ts": 1200, "pid": 3} for name in ("0", "1", "no rank", "99999999999")]
    whole, damaged = (
        diagnose_paths([Path(source_of(tmp_path, content, name).path)]).diagnosis
        for content, name in ((events, "whole.json"), (events + torn, "torn.json"))
    )
    assert [rank.parts_s for rank in damaged.ranks] == [rank.parts_s for rank in whole.ranks]


def test_two_processes_recorded_on_cpus_name_the_late_rank_from_json_alone(shared_data: Path) -> None:
    paths = [shared_data / "frameworks" / f"jax_gloo_rank{rank}.trace.json.gz" for rank in (0, 1)]
    diagnosis = diagnose_paths(paths).diagnosis
    assert diagnosis.findings[0].ranks == (1,)
    waits_s = sum(each.wait_s for each in diagnosis.blame if each.blamed_rank == 1)
    assert waits_s / diagnosis.job.num_steps == pytest.approx(0.053, abs=0.02)  # rank 1 sleeps 50 ms in each step


def test_a_job_of_jax_that_waits_for_copies_on_the_device_is_advised_to_donate(tmp_path: Path) -> None:
    events: list[Any] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": "Stream #118(Compute,MemcpyD2D)"}},
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
    ]
    for step in range(4):
        at = 100_000.0 * step
        mark = {"ph": "X", "pid": 701, "tid": 1, "name": "train", "args": {"step_num": str(step)}}
        kernel = {"ph": "X", "pid": 1, "tid": 1, "name": "loop_fusion", "args": {"hlo_op": "loop_fusion"}}
        copy = {**kernel, "name": "MemcpyD2D", "args": {"hlo_op": "copy.1", "memcpy_details": "kind_src:device size:9"}}
        events += [mark | {"ts": at, "dur": 99_000.0}, kernel | {"ts": at, "dur": 60_000.0}]
        events.append(copy | {"ts": at + 60_000, "dur": 30_000.0})
    content = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}
    findings = diagnose_paths([Path(source_of(tmp_path, content, "host.trace.json").path)]).diagnosis.findings
    changes = {finding.name: finding.changes for finding in findings}
    assert any("donate_argnums" in change for change in changes["memory-copy"])


@pytest.mark.parametrize("content", [rocprof(), horovod(), jax_trace()], ids=["rocprof", "horovod", "jax"])
def test_a_file_cut_anywhere_gives_events_or_one_line(tmp_path: Path, content: Any) -> None:
    text = json.dumps(content).encode()
    for size in range(0, len(text), len(text) // 23):
        with suppress(InputError):
            diagnose_paths([Path(source_of(tmp_path, text[:size]).path)])
