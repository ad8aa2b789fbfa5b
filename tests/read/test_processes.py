"""Several ranks in one file are split or refused, several sessions of a rank refused; never read as one rank."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.read.conftest import read_path

from flatout.diagnosis_pipeline import diagnose_paths
from flatout.errors import InputError
from flatout.testing import TraceBuilder


def rank(number: int, *, at: float = 0, base_ns: int = 0, world_size: int = 2) -> TraceBuilder:
    trace = TraceBuilder(number, world_size, base_ns=base_ns)
    for step in range(3):
        begin = at + 1000 * step
        trace.step(step, begin, 1000).launch("gemm", begin, 5, begin + 10, 900, op="aten::mm")
    return trace


def text(number: int, **fields: Any) -> bytes:
    return json.dumps(rank(number, **fields).to_json()).encode()


def events(number: int) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = rank(number).to_json()["traceEvents"]
    return listed


def merged() -> bytes:
    return json.dumps({**rank(0).to_json(), "traceEvents": events(0) + events(1)}).encode()


SEVERAL: dict[str, tuple[Callable[[], bytes], str]] = {
    "one after the other": (lambda: text(0) + text(1), "holds several"),
    "a line each": (lambda: text(0) + b"\n" + text(1), "holds several"),
    "compressed, one after the other": (lambda: gzip.compress(text(0)) + gzip.compress(text(1)), "holds several"),
    "a list of traces": (lambda: b"[" + text(0) + b"," + text(1) + b"]", "holds several"),
    "an object of traces": (lambda: b'{"0":' + text(0) + b',"1":' + text(1) + b"}", "holds several"),
    "two lists": (lambda: json.dumps(events(0)).encode() + b"\n" + json.dumps(events(1)).encode(), "holds several"),
    "merged": (merged, "has the events of 2 (pid 5000, 5001)"),
    "merged lists": (lambda: json.dumps(events(0) + events(1)).encode(), "has the events of 2"),
    "another archive": (lambda: b"!<arch>\n" + text(0) + text(1), "is not a JSON trace"),
    "a mail": (lambda: b"--boundary\n\n" + text(0) + b"--boundary\n\n" + text(1), "is not a JSON trace"),
}


@pytest.mark.parametrize("kind", SEVERAL)
def test_several_ranks_in_one_file_are_refused(kind: str, tmp_path: Path) -> None:
    content, message = SEVERAL[kind]
    path = tmp_path / ("trace.json.gz" if "compressed" in kind else "trace.json")
    path.write_bytes(content())
    with pytest.raises(InputError) as error:
        read_path(path)
    assert message in str(error.value)
    assert error.value.hint


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_zip_file_is_refused_even_if_its_members_are_stored_as_they_are(method: int, tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        for number in (0, 1):
            archive.writestr(f"rank{number}.json", text(number))
    with pytest.raises(InputError, match="compressed in an unsupported format"):
        diagnose_paths([path])


def test_a_second_trace_is_seen_behind_any_number_of_events(tmp_path: Path) -> None:
    """The border is in a later block than the begin."""
    long = {**rank(0).to_json(), "traceEvents": events(0) * 2000}
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps(long).encode() + text(1))
    with pytest.raises(InputError, match="holds several"):
        read_path(path)


def test_texts_that_look_like_another_trace_are_texts(tmp_path: Path) -> None:
    trace = rank(0).annotation('"traceEvents": [ }] [{', 10, 5)
    path = trace.write(tmp_path / "trace.json")
    assert '"traceEvents": [ }] [{' in read_path(path).names


def test_a_few_operators_of_another_process_are_no_rank(tmp_path: Path) -> None:
    """Below a tenth of all; at a tenth, a second rank."""
    for num_others, is_refused in ((1, False), (2, True)):
        others = [event | {"pid": 777} for event in events(0) if event.get("cat") == "cpu_op"][:1] * num_others
        many = events(0) + [event for event in events(0) if event.get("cat") == "cpu_op"] * 5
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": many + others}))
        if is_refused:
            with pytest.raises(InputError, match="pid 5000, 777"):
                read_path(path)
        else:
            assert read_path(path).meta.process == "5000"


# --- ranks that can be separated


def named(number: int) -> list[dict[str, Any]]:
    """The events of a rank in which each process and each device names the rank."""
    return [event | {"pid": f"rank {number} {event['pid']}"} for event in events(number) if "pid" in event]


def cpu_only(number: int) -> list[dict[str, Any]]:
    trace = TraceBuilder(number, 2)
    for step in range(3):
        trace.step(step, 1000 * step, 1000).op("aten::mm", 1000 * step + 10, 900 - 100 * number)
    listed: list[dict[str, Any]] = trace.to_json()["traceEvents"]
    return listed


@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_ranks_that_the_processes_name_are_separated(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**rank(0).to_json(), "traceEvents": named(0) + named(1)}))
    other = tmp_path / "rank2.json"
    other.write_bytes(text(2, world_size=3))
    diagnosis = diagnose_paths([path, other], engine=engine).diagnosis
    assert [one.rank for one in diagnosis.ranks] == [0, 1, 2]
    alone = [diagnose_paths([write(tmp_path, f"r{n}.json", rank(n))], engine="serial").diagnosis for n in (0, 1)]
    for number in (0, 1):
        assert diagnosis.ranks[number].parts_s == pytest.approx(alone[number].ranks[0].parts_s)
    assert [note.problem for note in diagnosis.data_quality if "has the traces of 2 ranks" in note.problem]


def test_ranks_on_the_cpu_are_separated_by_their_process(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"traceEvents": cpu_only(0) + cpu_only(1)}))
    diagnosis = diagnose_paths([path]).diagnosis
    assert [one.rank for one in diagnosis.ranks] == [0, 1]
    assert [one.parts_s["compute"] for one in diagnosis.ranks] == pytest.approx([2700e-6, 2400e-6])
    assert [note.problem for note in diagnosis.data_quality if "not say which rank" in note.problem]


def test_gpu_events_that_no_process_names_are_refused_with_a_way_out(tmp_path: Path) -> None:
    """The processes of the host name their ranks, and the devices do not: both ranks use stream 7 of GPU 0."""
    device = [event for event in events(0) + events(1) if event.get("cat") == "kernel"]
    host = [event for event in named(0) + named(1) if event.get("cat") != "kernel"]
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"traceEvents": host + device}))
    with pytest.raises(InputError, match="nothing says which GPU events belong to which rank") as error:
        diagnose_paths([path])
    assert "one file per rank" in error.value.hint


# --- sessions


def write(folder: Path, name: str, trace: TraceBuilder, *, says_rank: bool = True) -> Path:
    content = trace.to_json()
    if not says_rank:
        del content["distributedInfo"]
    path = folder / name
    path.write_text(json.dumps(content))
    return path


def test_two_sessions_of_a_rank_are_refused_with_the_time_between_them(tmp_path: Path) -> None:
    write(tmp_path, "host_5000.1700000000000.pt.trace.json", rank(0))
    write(tmp_path, "host_5000.1700000060000.pt.trace.json", rank(0, at=60e6))
    with pytest.raises(InputError, match=r"both say rank 0: they are two sessions, 60\.0 s apart") as error:
        diagnose_paths([tmp_path])
    assert "one session at a time" in error.value.hint


def test_two_sessions_that_say_no_rank_are_not_two_ranks(tmp_path: Path) -> None:
    first = write(tmp_path, "host_5000.1700000000000.pt.trace.json", rank(0, world_size=1), says_rank=False)
    write(tmp_path, "host_5000.1700000060000.pt.trace.json", rank(0, at=60e6, world_size=1), says_rank=False)
    with pytest.raises(InputError, match="they are two sessions") as error:
        diagnose_paths([tmp_path])
    assert "one session at a time" in error.value.hint and "--rank FILE=N" in error.value.hint
    assert diagnose_paths([first]).diagnosis.job.num_ranks == 1


def test_sessions_in_folders_of_their_own_are_refused_too(tmp_path: Path) -> None:
    for session in (0, 1):
        (tmp_path / f"session{session}").mkdir()
        for number in (0, 1):
            write(tmp_path / f"session{session}", f"rank{number}.json", rank(number, at=60e6 * session))
    with pytest.raises(InputError, match="two sessions"):
        diagnose_paths([tmp_path])
    assert diagnose_paths([tmp_path / "session1"]).diagnosis.job.num_ranks == 2


def test_ranks_that_say_nothing_but_were_recorded_together_are_ranks(tmp_path: Path) -> None:
    for number in (0, 1):
        write(tmp_path, f"trace_{number}.json", rank(number, at=100 * number), says_rank=False)
    assert [found.rank for found in diagnose_paths([tmp_path]).diagnosis.ranks] == [0, 1]


def test_the_user_can_say_that_recordings_one_after_the_other_are_ranks(tmp_path: Path) -> None:
    """The hosts' clocks are a minute apart."""
    for number in (0, 1):
        write(tmp_path, f"{'ab'[number]}.json", rank(number, at=60e6 * number), says_rank=False)
    done = diagnose_paths([tmp_path], given_ranks={"a.json": 0, "b.json": 1})
    assert done.diagnosis.job.num_ranks == 2


# --- hosts


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("node7_5000.1694128201545.pt.trace.json", "node7"),
        ("gpu_box_5000.1694128201545123456.pt.trace.json", "gpu_box"),
        ("train_0.1694128201545.pt.trace.json", None),  # 0 is not the process
        ("rank0.json", None),
    ],
)
def test_the_host_is_in_the_name_that_the_profiler_gives(name: str, host: str | None, tmp_path: Path) -> None:
    path = rank(0).write(tmp_path / name)
    assert read_path(path).meta.hostname == host
