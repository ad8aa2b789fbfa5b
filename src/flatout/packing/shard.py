"""Write one shard, read it again, and return where each sample is.

In: a `ShardTask`. Out: a `ShardOutcome`: the record of a shard that is complete, or the samples that are damaged. This
runs on any worker that sees the source and the folder: processes of this machine, of Ray or of Dask.

A shard is written under another name, flushed to the disk, read again by another reader of tar, compared sample by
sample with the checksums of what the source had, and only then gets its name; its record is written last. A process
that is killed at any moment leaves files that the next run does not take for a shard. Times in the shard are zero, so
the same samples always give the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import msgspec

from flatout.errors import OutputError
from flatout.input_files import decode_json, open_file, read_bytes
from flatout.inside.protocol import partial_name
from flatout.packing.extras import needs_extra
from flatout.packing.image_folder import IMAGE_EXTENSIONS
from flatout.packing.resize import resized
from flatout.packing.tables import cell_bytes
from flatout.records.packing import (
    CellContent,
    Content,
    DamagedSample,
    FileContent,
    LineContent,
    PackedSample,
    ShardRecord,
    SourceSample,
)

STATE = ".packing"  # folder in a pack for the records of its shards
_PLAN = "plan"  # file in that folder: the digest of the plan
_MAX_PLAN_BYTES = 1 << 10
MAX_SAMPLE_BYTES = (8 << 30) - 1  # the largest file in a tar of this form
_MAX_RECORD_BYTES = 1 << 30
_NUM_READERS = 8  # threads that read files ahead: a file on slow storage mostly waits
_IMAGES = {extension[1:] for extension in IMAGE_EXTENSIONS}
_BLOCK_BYTES = 1 << 20
_OWN_FIELDS = {"cls", "json"}


class ShardTask(msgspec.Struct, frozen=True, kw_only=True):
    """One shard to write."""

    folder: str
    plan: str
    split: str
    shard: str
    samples: tuple[tuple[int, SourceSample], ...]  # with their index in the source
    crop: int | None


class ShardOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """A shard's record; None if there are damaged samples."""

    record: ShardRecord | None
    damaged: tuple[DamagedSample, ...] = ()
    is_kept: bool = False  # an earlier run had finished the shard


class _Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What a sample has in the shard."""

    data: bytes
    source_bytes: int
    mtime_ns: int
    is_resized: bool = False


class _DamagedError(Exception):
    """A sample cannot be packed; the text says why."""


def pack_shard(task: ShardTask) -> ShardOutcome:
    """Write a shard, or keep the one that an earlier run has finished. Raise OutputError if it cannot be written."""
    folder = Path(task.folder)
    try:
        record = finished_record(folder, task)
        if record is not None:
            return ShardOutcome(record=record, is_kept=True)
        return _write(folder, task)
    except OSError as error:
        raise OutputError(
            f"{folder / task.shard} cannot be written: {(error.strerror or str(error)).lower()}",
            hint="finished shards are kept; run the same command again",
        ) from error


def finished_record(folder: Path, task: ShardTask) -> ShardRecord | None:
    """Return the record of a shard that is complete and whose sources are unchanged; None if it must be written."""
    record = read_record(folder, task.shard)
    if record is None or record.plan != task.plan:
        return None
    with suppress(OSError):
        is_complete = os.stat(folder / task.shard).st_size == record.num_bytes
        if is_complete and _is_unchanged(task, record):
            return record
    return None


def read_record(folder: Path, shard: str) -> ShardRecord | None:
    """Return the record of a shard; None if there is no complete one."""
    try:
        data = read_bytes(record_path(folder, shard), max_bytes=_MAX_RECORD_BYTES)
        return decode_json(data, ShardRecord)
    except (OSError, msgspec.DecodeError):
        return None


def begin_plan(folder: Path, digest: str) -> None:
    """Note the plan to which the shards in a folder belong."""
    write_whole(folder / STATE / _PLAN, digest.encode())


def begun_plan(folder: Path) -> str | None:
    """Return the digest of the plan that was begun in a folder; None if there is none."""
    try:
        return read_bytes(folder / STATE / _PLAN, max_bytes=_MAX_PLAN_BYTES).decode("ascii", "replace")
    except OSError:
        return None


def record_path(folder: Path, shard: str) -> Path:
    return folder / STATE / f"{shard}.json"


def _is_unchanged(task: ShardTask, record: ShardRecord) -> bool:
    """Whether the files that the samples were read from are as they were then."""
    for (_, sample), packed in zip(task.samples, record.samples, strict=True):
        if sample.content is None:
            continue
        status = os.stat(sample.content.path)
        is_file = isinstance(sample.content, FileContent)
        if status.st_mtime_ns != packed.source_mtime_ns or (is_file and status.st_size != packed.source_bytes):
            return False
    return True


def _write(folder: Path, task: ShardTask) -> ShardOutcome:
    with needs_extra("data", "to write shards"):
        from webdataset.writer import TarWriter
    partial = folder / STATE / partial_name(f"{task.shard}.{os.getpid()}")
    packed: list[tuple[int, SourceSample, _Loaded]] = []
    damaged: list[DamagedSample] = []
    try:
        with open(partial, "wb") as file:
            tar = TarWriter(file, encoder=False, mtime=0, format=tarfile.USTAR_FORMAT)
            for index, sample, loaded in _loaded_samples(task, damaged):
                if damaged:
                    continue  # only to name the others
                tar.write(_members(index, sample, loaded.data))
                packed.append((index, sample, msgspec.structs.replace(loaded, data=_checksum(loaded.data))))
            tar.close()
            file.flush()
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # what is read again is from the disk
        if damaged:
            return ShardOutcome(record=None, damaged=tuple(damaged))
        record = _verified(partial, task, packed)
        partial.rename(folder / task.shard)
    finally:
        partial.unlink(missing_ok=True)
    write_whole(record_path(folder, task.shard), msgspec.json.encode(record))
    return ShardOutcome(record=record)


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is complete or not there, also after a kill or a crash of the machine."""
    partial = path.with_name(partial_name(f"{path.name}.{os.getpid()}"))
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(path)


def _loaded_samples(task: ShardTask, damaged: list[DamagedSample]) -> Iterator[tuple[int, SourceSample, _Loaded]]:
    """Yield the samples in order, read ahead by threads; add to `damaged` those that cannot be packed."""
    cells = _Cells()

    def load(item: tuple[int, SourceSample]) -> _Loaded | DamagedSample:
        _, sample = item
        try:
            return _load(sample, task.crop, cells)
        except _DamagedError as error:
            return DamagedSample(name=sample.name, reason=str(error))

    with ThreadPoolExecutor(_NUM_READERS) as pool:
        for start in range(0, len(task.samples), _NUM_READERS):
            some = task.samples[start : start + _NUM_READERS]
            for (index, sample), result in zip(some, pool.map(load, some), strict=True):
                if isinstance(result, DamagedSample):
                    damaged.append(result)
                else:
                    yield index, sample, result


def _load(sample: SourceSample, crop: int | None, cells: _Cells) -> _Loaded:
    if sample.content is None:
        return _Loaded(data=b"", source_bytes=0, mtime_ns=0)
    try:
        data, mtime_ns = _content(sample.content, cells)
    except OSError as error:
        raise _DamagedError((error.strerror or str(error)).lower()) from error
    if not data:
        raise _DamagedError("it is empty")
    if sample.extension not in _IMAGES:
        return _Loaded(data=data, source_bytes=len(data), mtime_ns=mtime_ns)
    image = _decoded(data)
    smaller = resized(image, crop) if crop is not None else None
    return _Loaded(
        data=data if smaller is None else smaller,
        source_bytes=len(data),
        mtime_ns=mtime_ns,
        is_resized=smaller is not None,
    )


def _content(content: Content, cells: _Cells) -> tuple[bytes, int]:
    """Return the bytes of a sample, and when its file last changed. Raise OSError if they cannot be read."""
    if isinstance(content, CellContent):
        return cells.read(content)
    with open_file(Path(content.path)) as file:
        status = os.fstat(file.fileno())
        if isinstance(content, FileContent) and status.st_size > MAX_SAMPLE_BYTES:
            raise _DamagedError("it has 8 GiB or more, which no tar of this form can hold")
        data = _bytes_of_line(file, content) if isinstance(content, LineContent) else file.read(status.st_size)
        after = os.fstat(file.fileno())
    if (after.st_mtime_ns, after.st_size) != (status.st_mtime_ns, status.st_size):
        raise _DamagedError("it changed while it was read")
    return data, status.st_mtime_ns


def _bytes_of_line(file: IO[bytes], content: LineContent) -> bytes:
    file.seek(content.offset)
    return file.read(content.num_bytes)


class _Cells:
    """Cells of a Parquet file: keeps the column of one row group, as samples are read in the order of a permutation."""

    def __init__(self) -> None:
        self._columns: dict[tuple[str, int, str], Any] = {}
        self._mtimes: dict[str, int] = {}

    def read(self, cell: CellContent) -> tuple[bytes, int]:
        key = (cell.path, cell.group, cell.column)
        column = self._columns.get(key)
        if column is None:
            with needs_extra("data", "to read Parquet"):
                from pyarrow import parquet
            self._mtimes[cell.path] = os.stat(cell.path).st_mtime_ns
            column = parquet.ParquetFile(cell.path).read_row_group(cell.group, columns=[cell.column]).column(0)
            self._columns[key] = column
        return cell_bytes(column[cell.row].as_py()) or b"", self._mtimes[cell.path]


def _decoded(data: bytes) -> Any:
    """Return the image. Raise _DamagedError if it cannot be decoded to its end."""
    with needs_extra("data", "to check images"):
        from PIL.Image import open as open_image
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of large images, and of metadata that no training reads
        try:
            image = open_image(io.BytesIO(data))
            image.load()
        except Exception as error:
            raise _DamagedError(_why_not_decoded(error)) from error
    return image


def _why_not_decoded(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "it is not an image"
    lines = str(error).splitlines()
    return f"it cannot be decoded: {lines[0] if lines else type(error).__name__}"


def sample_key(index: int) -> str:
    """Return the key of a sample in its shard, by its index in the source."""
    return f"{index:09d}"


def _members(index: int, sample: SourceSample, data: bytes) -> dict[str, Any]:
    members: dict[str, Any] = {"__key__": sample_key(index)}
    if sample.content is not None:
        members[content_member(sample)] = data
    if sample.label is not None:
        members["cls"] = str(sample.label).encode()
    if sample.fields:
        members["json"] = sample.fields
    return members


def content_member(sample: SourceSample) -> str:
    """Return the extension of the content's member, other than those of a label and of fields."""
    clashes = sample.extension in _OWN_FIELDS and (sample.fields or sample.extension == "cls")
    return f"data.{sample.extension}" if clashes else sample.extension


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _verified(path: Path, task: ShardTask, packed: list[tuple[int, SourceSample, _Loaded]]) -> ShardRecord:
    """Read the shard again, and return its record. Raise OSError if anything in it is not what was written."""
    members = _members_of(path)
    samples = []
    for index, sample, loaded in packed:
        expected = _members(index, sample, b"")
        member = content_member(sample)
        offset = num_bytes = 0
        for extension, value in expected.items():
            if extension == "__key__":
                continue
            place = members.pop(f"{sample_key(index)}.{extension}", None)
            checksum = loaded.data if extension == member and sample.content is not None else _checksum(value)
            if place is None or place.checksum != checksum:
                raise OSError(f"sample {sample.name} is not in it as it was written: the disk may be faulty")
            if extension == member:
                offset, num_bytes = place.offset, place.num_bytes
        samples.append(
            PackedSample(
                index=index,
                name=sample.name,
                label=sample.label,
                split=task.split,
                shard=task.shard,
                member=f"{sample_key(index)}.{member}",
                offset=offset,
                num_bytes=num_bytes,
                sha256=loaded.data.hex(),
                source_bytes=loaded.source_bytes,
                source_mtime_ns=loaded.mtime_ns,
                is_resized=loaded.is_resized,
            )
        )
    if members:
        raise OSError("it has members that were not written: the disk may be faulty")
    return ShardRecord(
        plan=task.plan,
        shard=task.shard,
        num_bytes=path.stat().st_size,
        sha256=file_checksum(path),
        samples=tuple(samples),
    )


class _Member(msgspec.Struct, frozen=True):
    offset: int
    num_bytes: int
    checksum: bytes


def _members_of(path: Path) -> dict[str, _Member]:
    members = {}
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            content = tar.extractfile(member)
            if content is None:
                raise OSError("it has a member that is not a file: the disk may be faulty")
            members[member.name] = _Member(member.offset_data, member.size, _checksum(content.read()))
    return members


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open_file(path) as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()
