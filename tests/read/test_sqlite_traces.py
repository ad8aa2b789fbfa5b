"""SQLite files of Nsight Systems and of rocprofv3: events of known content, counts by SQL, and damage."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import pytest
from tests.read import sqlite_files
from tests.read.sqlite_files import EPOCH_NS, MS, PID

from flatout.attribute.rank import attribute_rank
from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import InputError
from flatout.read import SeveralRanksError, TraceSource, read_trace
from flatout.read.database import Database, Where
from flatout.records.diagnosis import Part
from flatout.records.events import EventTable, Kind, TraceFormat


def source_of(folder: Path, tables: sqlite_files.Tables, name: str = "trace.sqlite") -> TraceSource:
    path = folder / name
    path.write_bytes(sqlite_files.database(tables))
    return TraceSource(path=str(path), name=name, size_bytes=path.stat().st_size)


def rows(table: EventTable, base_ns: int = 0) -> set[tuple[str, str, int, int]]:
    columns = (table.kind, table.name, table.start_ns, table.duration_ns)
    return {
        (Kind(kind).name, table.names[name], (start - base_ns) // MS, duration // MS)
        for kind, name, start, duration in zip(*(column.tolist() for column in columns), strict=True)
    }


def parts_in_ms(table: EventTable) -> dict[str, int]:
    timeline = attribute_rank(table)
    spent = timeline.segments.between_ns(timeline.window_start_ns, timeline.window_end_ns)
    assert int(spent.sum()) == timeline.window_end_ns - timeline.window_start_ns
    return {Part(part).name: int(ns) // MS for part, ns in enumerate(spent.tolist()) if ns >= MS}


def test_an_export_of_nsight_systems_has_kernels_copies_launches_steps_and_operators(tmp_path: Path) -> None:
    table = read_trace(source_of(tmp_path, sqlite_files.nsys_tables()))
    assert {row for row in rows(table, EPOCH_NS) if row[2] < 100} == {
        ("KERNEL", "gemm", 20, 30),
        ("KERNEL", "ncclDevKernel_AllReduce", 50, 20),
        ("MEMCPY", "Memcpy HtoD", 70, 5),
        ("RUNTIME", "cudaLaunchKernel", 11, 0),
        ("RUNTIME", "cudaLaunchKernel", 12, 0),
        ("RUNTIME", "cudaMemcpyAsync", 13, 0),
        ("USER_ANNOTATION", "ProfilerStep#0", 0, 90),
        ("USER_ANNOTATION", "flatout:data_loading (data loading)", 1, 9),
        ("CPU_OP", "aten::mm", 11, 2),
    }
    assert (table.meta.hostname, table.meta.device_name, table.meta.process) == ("node", "H100", str(PID))
    assert any("12 events were lost" in note.problem for note in table.quality)
    assert not any("fine" in note.problem for note in table.quality)


def test_parts_of_an_export_are_those_of_its_events(tmp_path: Path) -> None:
    parts = parts_in_ms(read_trace(source_of(tmp_path, sqlite_files.nsys_tables())))
    assert (parts["COMPUTE"], parts["COMMUNICATION_UNSPLIT"], parts["MEMORY_COPY"]) == (90, 60, 15)
    assert parts["DATA_LOADING"] == 27


def test_processes_of_an_export_are_ranks_by_their_gpus(tmp_path: Path) -> None:
    source = source_of(tmp_path, sqlite_files.nsys_tables((PID, PID + 1)))
    with pytest.raises(SeveralRanksError):
        read_trace(source)
    diagnosis = diagnose_paths([Path(source.path)]).diagnosis
    assert [rank.rank for rank in diagnosis.ranks] == [0, 1]
    assert diagnosis.job.num_steps == 3
    assert all(abs(sum(rank.parts_s.values()) - rank.window_s) < 1e-6 for rank in diagnosis.ranks)


def test_tables_and_columns_that_a_version_lacks_are_unknown(tmp_path: Path) -> None:
    tables = sqlite_files.nsys_tables()
    kernels = tables["CUPTI_ACTIVITY_KIND_KERNEL"]
    few = {"CUPTI_ACTIVITY_KIND_KERNEL": (kernels[0][:4], [row[:4] for row in kernels[1]])}
    table = read_trace(source_of(tmp_path, few))
    assert {row[:2] for row in rows(table)} == {("KERNEL", "kernel")}
    assert (table.correlation == -1).all()
    assert any("when its times begin" in note.problem for note in table.quality)
    # Without launches, nothing says that the time between kernels is launch latency.
    assert set(parts_in_ms(table)) == {"COMPUTE", "UNATTRIBUTED"}


def test_tables_whose_names_end_with_a_version_are_read_as_others(tmp_path: Path) -> None:
    """A report: an annotated export with `NVTX_EVENTS_V2` was said to have no ranges (nsys-ai 291)."""
    tables = sqlite_files.nsys_tables()
    expected = read_trace(source_of(tmp_path, tables))
    kernels, ranges = "CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"
    versions = {kernels: f"{kernels}_V3", ranges: f"{ranges}_V10"}
    renamed = {versions.get(name, name): table for name, table in tables.items()}
    older = {f"{ranges}_V9": (tables[ranges][0], []), f"{kernels}_VERSION": (tables[kernels][0], [])}
    table = read_trace(source_of(tmp_path, renamed | older, "versions.sqlite"))
    assert rows(table) == rows(expected)


def test_values_that_are_no_integers_are_converted_or_unknown(tmp_path: Path) -> None:
    path = tmp_path / "file.sqlite"
    values = [(1, 7), ("12", None), (2.5, b"x"), (1 << 62, "y")]
    path.write_bytes(sqlite_files.database({"T": (("a", "b"), values)}))
    with Database(path, "file.sqlite") as database:
        columns = database.integers("T", ("a", "missing", "b"))
        assert database.integers("none", ("a",))["a"].tolist() == []
        where = Where("b", lambda numbers: numbers < 1)
        assert database.integers("T", ("a",), where)["a"].tolist() == [12, 2, 1 << 62]
    expected = {"a": [1, 12, 2, 1 << 62], "missing": [-1] * 4, "b": [7, -1, 0, 0]}
    assert {name: column.tolist() for name, column in columns.items()} == expected


def test_counts_of_a_published_export_are_those_of_sql(shared_data: Path) -> None:
    path = shared_data / "frameworks" / "h100_2gpu_1s.sqlite"
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    pid = "globalPid >> 24 & 16777215"
    query = f"SELECT {pid}, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_{{}} GROUP BY 1 ORDER BY 1"
    expected = {kind: connection.execute(query.format(kind)).fetchall() for kind in ("KERNEL", "MEMCPY", "MEMSET")}
    source = TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size)
    with pytest.raises(SeveralRanksError) as error:
        read_trace(source)
    tables = [read_trace(part) for part in source.split(error.value.parts)]
    for kind, of_process in expected.items():
        for table, (pid, count, duration_ns) in zip(tables, of_process, strict=True):
            chosen = table.kind == Kind[kind]
            assert table.meta.process == str(pid)
            assert (int(chosen.sum()), int(table.duration_ns[chosen].sum())) == (count, duration_ns)


def test_a_file_of_rocm_profile_data_is_named_and_refused(tmp_path: Path) -> None:
    """Its tables, as in the repository's `raptor/tests/mytrace.rpd.gz`, begin with `rocpd_` too."""
    tables: sqlite_files.Tables = {name: (("id",), []) for name in ("rocpd_op", "rocpd_api", "rocpd_api_ops")}
    with pytest.raises(InputError, match="is an RPD file of rocmProfileData") as error:
        read_trace(source_of(tmp_path, tables, "trace.rpd"))
    assert "rocprofv3" in error.value.hint


@pytest.mark.parametrize("has_tracks", [False, True], ids=["times in the rows", "times in a table"])
def test_a_rocpd_database_has_kernels_copies_calls_and_steps(tmp_path: Path, has_tracks: bool) -> None:
    table = read_trace(source_of(tmp_path, sqlite_files.rocpd_tables(has_tracks=has_tracks), "1_results.db"))
    assert table.meta.format == TraceFormat.ROCPD
    assert {row for row in rows(table) if row[2] < 100} == {
        ("KERNEL", "gemm", 20, 30),
        ("MEMCPY", "Memcpy HtoD", 70, 5),
        ("RUNTIME", "hipLaunchKernel", 11, 1),
        ("RUNTIME", "hipMemcpyAsync", 12, 1),
        ("RUNTIME", "__hipRegisterFunction", 14, 1),
        ("USER_ANNOTATION", "ProfilerStep#0", 0, 90),
    }
    assert (table.meta.device, table.meta.device_name, table.meta.hostname) == (3, "MI300X", "node")
    timeline = attribute_rank(table)
    assert not [note for note in timeline.quality if "launching call" in note.problem]  # kernels are linked to calls
    assert parts_in_ms(table)["COMPUTE"] == 90  # and all parts sum to the window
    assert any("published schema" in note.problem for note in table.quality)


def test_without_categories_regions_of_rocpd_are_calls_by_their_names(tmp_path: Path) -> None:
    tables = sqlite_files.rocpd_tables()
    events = f"rocpd_event{sqlite_files.ROCPD_ID}"
    columns, rows_of_events = tables[events]
    tables[events] = (columns[:2], [row[:2] for row in rows_of_events])
    table = read_trace(source_of(tmp_path, tables, "1_results.db"))
    assert {row[:2] for row in rows(table) if row[0] in ("RUNTIME", "USER_ANNOTATION")} == {
        ("RUNTIME", "hipLaunchKernel"),
        ("RUNTIME", "hipMemcpyAsync"),
        ("RUNTIME", "__hipRegisterFunction"),
        ("USER_ANNOTATION", "roctxThreadRangeA"),
    }
    assert not any("damaged" in note.problem for note in table.quality)


def test_a_file_with_a_journal_beside_it_may_lack_rows(tmp_path: Path) -> None:
    source = source_of(tmp_path, sqlite_files.nsys_tables())
    for suffix, content, is_unfinished in (("-wal", "", False), ("-wal", "x", True), ("-journal", "x", True)):
        journal = tmp_path / f"trace.sqlite{suffix}"
        journal.write_text(content)
        notes = [note for note in read_trace(source).quality if "the file has a journal" in note.problem]
        assert [note.max_confidence for note in notes] == ["inconclusive"] * is_unfinished
        journal.unlink()


@pytest.mark.parametrize(
    ("name", "content", "message", "hint"),
    [
        ("a.sqlite", sqlite_files.database({"people": (("id",), [(1,)])}), "has no table of Nsight", "nsys export"),
        ("a.nsys-rep", b"QDSTRM", "is a report of another tool", "nsys export --type sqlite FILE"),
        ("a.pftrace", b"\n\x10", "is a report of another tool", "--output-format json"),
        ("a.json", b"[\n", "has no events", "a timeline of Horovod begins with the first operation"),
    ],
)  # fmt: skip
def test_a_file_of_another_tool_is_one_line_with_the_way_out(
    tmp_path: Path, name: str, content: bytes, message: str, hint: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message) as error:
        read_trace(TraceSource(path=str(path), name=name, size_bytes=len(content)))
    assert hint in error.value.hint


def test_a_file_damaged_anywhere_gives_rows_or_one_line(tmp_path: Path) -> None:
    whole = sqlite_files.database(sqlite_files.nsys_tables())
    path = tmp_path / "trace.sqlite"
    source = TraceSource(path=str(path), name=path.name, size_bytes=len(whole))
    num_read = 0
    for at in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + b"\xff" * 64 + whole[at + 64 :])
        with suppress(InputError):
            read_trace(source)
            num_read += 1
    assert num_read > 10


def test_a_view_in_place_of_a_table_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "trace.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS start, 2 AS end")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match="has no table of Nsight Systems or of rocprofv3"):
        read_trace(TraceSource(path=str(path), name=path.name, size_bytes=path.stat().st_size))
