"""Files, folders and archives become a list of traces."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.read.conftest import read_path
from tests.read.samples import small_events, small_trace

from flatout.errors import InputError
from flatout.read import TraceSource, open_sources, read_trace

TRACE = json.dumps(small_trace()).encode()


def names(path: Path) -> list[str]:
    with open_sources([path]) as sources:
        return [source.name.removeprefix(str(path)).lstrip("/") for source in sources]


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rank3.json"
    path.write_bytes(TRACE)
    with open_sources([path]) as sources:
        assert sources == [TraceSource(path=str(path), name=str(path), size_bytes=len(TRACE), rank_hint=3)]
        assert pickle.loads(pickle.dumps(sources)) == sources


def test_a_folder_and_its_subfolders_without_what_is_no_trace(tmp_path: Path) -> None:
    for name, content in {
        "rank0.json": TRACE,
        "rank1.json.gz": gzip.compress(TRACE, mtime=0),
        "rank2.pt.trace.json": TRACE,
        "list.json": json.dumps(small_events()).encode(),
        "info.json": b'{"name": "straggler"}',
        "report.json": b'{"schema": "flatout/diagnosis", "version": 1, "traceEvents": 0}',
        ".hidden.json": TRACE,
        "notes.txt": TRACE,
        "run/rank3.json": TRACE,
        "run/deeper/rank4.json": TRACE,
        "broken.json": b"",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "pipe.json")
    assert names(tmp_path) == [
        "broken.json",  # the reader says what is wrong with it
        "list.json",
        "rank0.json",
        "rank1.json.gz",
        "rank2.pt.trace.json",
        "run/rank3.json",
    ]


def test_the_trace_of_a_stall_is_read_only_if_it_is_named(tmp_path: Path) -> None:
    """In the folder of a recording, it is a second trace of a rank that has one already."""
    for name in ("rank0.json", "stall-rank0.json", "stall-rank0.json.gz", "stall-rankings.json"):
        (tmp_path / name).write_bytes(gzip.compress(TRACE) if name.endswith(".gz") else TRACE)
    assert names(tmp_path) == ["rank0.json", "stall-rankings.json"]
    assert names(tmp_path / "stall-rank0.json") == [""]


def test_several_paths(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(TRACE)
    (tmp_path / "a.json").write_bytes(TRACE)
    with open_sources([tmp_path / "b.json", tmp_path / "a.json"]) as sources:
        assert [Path(source.path).name for source in sources] == ["b.json", "a.json"]


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
@pytest.mark.parametrize("name", ["job.tar", "anything"])
def test_archives_by_content(tmp_path: Path, mode: str, name: str) -> None:
    path = tmp_path / name
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member, data in {
            "job/rank0.json": TRACE,
            "job/rank1.json.gz": gzip.compress(TRACE, mtime=0),
            "job/info.json": b"{}",
            "job/readme.md": b"x",
            "job/._rank0.json": TRACE,
        }.items():
            info = tarfile.TarInfo(member)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    with open_sources([path]) as sources:
        folder = Path(sources[0].path).parent
        assert [source.name for source in sources] == [f"{path}/job/rank0.json", f"{path}/job/rank1.json.gz"]
        assert [source.rank_hint for source in sources] == [0, 1]
        assert all(read_trace(source).num_events == 12 for source in sources)
        assert folder.parent.stat().st_mode & 0o077 == 0
    assert not folder.exists()


def test_the_folder_is_removed_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w") as archive:
        info = tarfile.TarInfo("rank0.json")
        info.size = len(TRACE)
        archive.addfile(info, io.BytesIO(TRACE))
    opening = open_sources([path])
    (source,) = opening.__enter__()
    assert Path(source.path).exists()
    opening.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not Path(source.path).exists()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "holds no trace"),
        (lambda path: os.mkfifo(path), "is not a file, folder or archive"),
        (lambda path: (path.mkdir(), (path / "info.json").write_text("{}")), "holds no trace"),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "does not exist"),
    ],
)
def test_what_cannot_be_opened_is_one_line_with_a_hint(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    make(tmp_path / "given")
    with pytest.raises(InputError, match=message) as error, open_sources([tmp_path / "given"]):
        pass
    assert str(tmp_path / "given") in str(error.value) and "\n" not in str(error.value) and error.value.hint


def test_a_file_that_goes_away_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TRACE)
    with open_sources([path]) as sources:
        path.unlink()
        with pytest.raises(InputError, match="does not exist"):
            read_trace(sources[0])


def deny(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As the system does for files that may not be read, which tests that run as root cannot make."""
    opened = os.open

    def open_others(path: Any, *args: Any, **kwargs: Any) -> int:
        if Path(path).name == name:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", open_others)


def test_permission_denied_by_the_system_is_an_input_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(TRACE)
    deny(monkeypatch, "trace.json")
    with pytest.raises(InputError, match="cannot be read: Permission denied"), open_sources([path]):
        pass


def test_of_a_folder_a_file_that_may_not_be_read_is_left_to_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("rank0.json", "rank1.json"):
        (tmp_path / name).write_bytes(TRACE)
    deny(monkeypatch, "rank1.json")
    with open_sources([tmp_path]) as sources:
        assert read_trace(sources[0]).num_events == 12
        with pytest.raises(InputError, match=r"rank1\.json cannot be read: Permission denied"):
            read_trace(sources[1])


def test_a_subfolder_that_may_not_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rank0.json").write_bytes(TRACE)
    (tmp_path / "private").mkdir()
    listed = Path.iterdir

    def list_others(self: Path) -> Any:
        if self.name == "private":
            raise PermissionError(13, "Permission denied", str(self))
        return listed(self)

    monkeypatch.setattr(Path, "iterdir", list_others)
    with open_sources([tmp_path]) as (source,):
        assert source.quality[0].problem == f"{tmp_path}/private cannot be read: Permission denied"


def test_a_name_that_is_no_utf8_can_be_written(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/rank\xff3.json"))
    path.write_bytes(TRACE)
    with open_sources([path]) as (source,):
        assert source.name.encode().endswith(rb"rank\udcff3.json")
        assert read_trace(source).num_events == 12


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".trace.json"])
def test_a_trace_of_ours_is_passed_over_and_refused_alone(tmp_path: Path, suffix: str) -> None:
    ours = f'{{"displayTimeUnit":"ns","otherData":{{"flatout":"1"}},"traceEvents":[\n{json.dumps(small_events()[1])}]}}'
    path = tmp_path / f"out{suffix}"
    path.write_bytes(gzip.compress(ours.encode(), mtime=0) if suffix.endswith("gz") else ours.encode())
    (tmp_path / "rank0.json").write_bytes(TRACE)
    assert names(tmp_path) == ["rank0.json"]
    with pytest.raises(InputError, match=r"is a trace that Flatout wrote for ui\.perfetto\.dev") as error:
        read_path(path)
    assert "original traces" in error.value.hint


@pytest.mark.parametrize("magic", [b"PK\x03\x04", b"BZh91AY", b"\x28\xb5\x2f\xfd"])
def test_archives_that_are_not_read_say_which_are(tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "job.zip"
    path.write_bytes(magic + bytes(range(128, 256)))
    with pytest.raises(InputError, match="compressed in an unsupported format") as error:
        read_path(path)
    assert ".tar.xz" in error.value.hint
