"""Hostile archives and decompression bombs are refused before they do harm."""

from __future__ import annotations

import gzip
import io
import json
import random
import tarfile
from pathlib import Path

import pytest
from tests.read.samples import problems, small_trace

from flatout.errors import InputError
from flatout.read import open_sources, read_trace, stream
from flatout.read.stream import ByteStream, Limits

TRACE = json.dumps(small_trace()).encode()


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def archive_of(path: Path, *members: tarfile.TarInfo, data: bytes = TRACE, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        good = member("good.json", size=len(TRACE))
        archive.addfile(good, io.BytesIO(TRACE))
        for info in members:
            if info.isreg():
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return path


def refused(path: Path, message: str, limits: Limits | None = None) -> None:
    before = set(path.parent.rglob("*"))
    with (
        pytest.raises(InputError, match=message) as error,
        open_sources([path], **({} if limits is None else {"limits": limits})),
    ):
        pass
    assert str(path) in str(error.value) and "\n" not in str(error.value) and error.value.hint
    assert set(path.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (member("/etc/rank0.json"), "outside its folder"),
        (member("../rank0.json"), "outside its folder"),
        (member("a/../../rank0.json"), "outside its folder"),
        (member("C:/rank0.json"), "outside its folder"),
        (member("\\\\server\\rank0.json"), "outside its folder"),
        (member("link.json", tarfile.SYMTYPE, linkname="/etc/passwd"), "a link"),
        (member("link.json", tarfile.LNKTYPE, linkname="good.json"), "a link"),
        (member("folder", tarfile.SYMTYPE, linkname="/"), "a link"),
        (member("null.json", tarfile.CHRTYPE), "a device or pipe"),
        (member("disk.json", tarfile.BLKTYPE), "a device or pipe"),
        (member("pipe.json", tarfile.FIFOTYPE), "a device or pipe"),
    ],
    ids=lambda value: value.name if isinstance(value, tarfile.TarInfo) else "",
)
@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_hostile_member(tmp_path: Path, info: tarfile.TarInfo, message: str, mode: str) -> None:
    refused(archive_of(tmp_path / "job.tar", info, mode=mode), message)


def test_a_sparse_file(tmp_path: Path) -> None:
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = member("sparse.json", size=10)
        info.pax_headers = {"GNU.sparse.map": "0,5", "GNU.sparse.size": str(1 << 40), "GNU.sparse.realsize": "9"}
        archive.addfile(info, io.BytesIO(b"0123456789"))
    refused(path, "a sparse file")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory(tmp_path: Path, kind: bytes) -> None:
    header = member("x", kind, size=2 << 30).tobuf(tarfile.USTAR_FORMAT)
    path = tmp_path / "job.tar"
    path.write_bytes(header + bytes(1 << 20))
    refused(path, "a header of more than 1 MiB")


def test_too_many_members(tmp_path: Path) -> None:
    members = [member(f"{number}.txt") for number in range(20)]
    refused(archive_of(tmp_path / "job.tar", *members, data=b""), "more than 10 members", Limits(max_members=10))


@pytest.mark.parametrize("mode", ["w:gz", "w:xz"])
def test_a_bomb_is_stopped_while_it_unpacks(tmp_path: Path, mode: str) -> None:
    path = archive_of(tmp_path / "job.tar", member("rank0.json"), data=bytes(32 << 20), mode=mode)
    refused(path, "unpack to more than", Limits(max_bytes=8 << 20))
    refused(path, "unpack to more than", Limits(ratio_from_bytes=1 << 20, max_ratio=50))
    # also in a member that would be skipped
    path = archive_of(tmp_path / "job.tar", member("readme.md"), data=bytes(32 << 20), mode=mode)
    refused(path, "unpack to more than", Limits(max_bytes=8 << 20))


def test_a_gzip_bomb_of_one_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + b" " * (16 << 20) + b"]}", mtime=0))
    with ByteStream(path, "trace", Limits(max_bytes=1 << 20)) as bomb, pytest.raises(InputError, match="trace must"):
        bomb.read(2 << 20)


def test_an_archive_that_was_cut_before_its_first_trace_began_is_damaged_and_that_trace_is_not_called_empty(
    tmp_path: Path,
) -> None:
    path = tmp_path / "job.tar"
    with tarfile.open(path, "w") as archive:
        archive.addfile(member("rank0.json", size=5000), io.BytesIO(b" " * 5000))
    path.write_bytes(path.read_bytes()[:512])
    with pytest.raises(InputError, match="is a damaged archive: ") as caught, open_sources([path]):
        pass
    assert caught.value.hint == "copy or pack it again"


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_of_a_damaged_archive_what_comes_before_the_damage_is_read(tmp_path: Path, mode: str) -> None:
    noise = random.Random(0).randbytes(1 << 20)
    path = archive_of(tmp_path / "job.tar", member("rank0.json"), data=noise, mode=mode)
    path.write_bytes(path.read_bytes()[: -(1 << 19)])
    with open_sources([path]) as sources:
        assert [Path(source.path).name for source in sources] == ["good.json", "rank0.json"]
        assert read_trace(sources[0]).num_events == 12
        assert "is a damaged archive" in sources[1].quality[0].problem
        assert "archive" not in problems(read_trace(sources[0]))
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError), open_sources([path]) as sources:
        read_trace(sources[0])


def test_real_archives_stay_within_the_limits(public_traces: Path, tmp_path: Path) -> None:
    assert stream.LIMITS.max_ratio > 100
    with open_sources([public_traces / "param_dlrm_8xV100" / "dlrm_kineto.tar.gz"]) as sources:
        assert len(sources) == 8


def test_members_of_one_name_are_told(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "job.tar", member("good.json"), member("good.json"), member("rank1.json"))
    with open_sources([path]) as sources:
        assert [Path(source.path).name for source in sources] == ["good.json", "rank1.json"]
        (note,) = sources[-1].quality
        assert note.problem == f"{path} has several members called good.json"
        assert read_trace(sources[-1]).quality == ()  # told once, by whoever opened the sources
