"""Unpack the traces of an untrusted tar archive into a folder.

In: `.tar`, `.tar.gz`, `.tar.xz` (by content). Out: regular files below the folder. An archive that contains an absolute
path, `..`, a link, a device or a sparse file is refused completely, and so is one that exceeds the limits, which are
checked while unpacking. Members that are not traces are skipped. From a damaged archive, the members before the damage
are kept.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path, PurePosixPath
from typing import Self

import msgspec

from flatout.errors import InputError
from flatout.read.stream import ByteStream, Limits

_COPY_BYTES = 1 << 20
_MAX_HEADER_BYTES = 1 << 20  # of a long name or an extended header, which tarfile holds in memory
_HINT = "unpack it yourself, check what it contains, and pass the folder"
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Unpacked(msgspec.Struct, frozen=True, kw_only=True):
    problem: str | None  # why the archive ends early; None if it is complete
    repeated_names: tuple[str, ...]  # names of members that replaced an earlier member


def unpack(path: Path, folder: Path, suffixes: tuple[str, ...], limits: Limits) -> Unpacked:
    """Write the members whose names end with one of `suffixes` below `folder`."""
    repeated: dict[str, None] = {}
    with ByteStream(path, str(path), limits) as stream:
        try:
            with tarfile.open(fileobj=_File(stream), mode="r|", tarinfo=_Member) as archive:
                for number, member in enumerate(archive):
                    if number >= limits.max_members:
                        raise _refusal(path, f"more than {limits.max_members:,} members")
                    _check(path, member)
                    if member.isreg() and member.name.endswith(suffixes) and not _is_hidden(member.name):
                        target = folder / member.name
                        if target.exists():
                            repeated[member.name] = None
                        _write(archive, member, target)
        except _HeaderTooLargeError as error:
            raise _refusal(path, "a header of more than 1 MiB") from error
        except (tarfile.TarError, EOFError, UnicodeError) as error:
            return Unpacked(problem=stream.problem or str(error), repeated_names=tuple(repeated))
        return Unpacked(problem=stream.problem, repeated_names=tuple(repeated))


class _File(io.RawIOBase):
    """The file interface that tarfile requires."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        assert size >= 0
        return self._stream.read(size)


class _HeaderTooLargeError(Exception):
    pass


class _Member(tarfile.TarInfo):
    """A member whose extended headers cannot exhaust the memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        member = super().frombuf(buf, encoding, errors)
        if member.type in _HEADERS and member.size > _MAX_HEADER_BYTES:
            raise _HeaderTooLargeError
        return member


def _check(path: Path, member: tarfile.TarInfo) -> None:
    parts = PurePosixPath(member.name).parts
    if member.name.startswith(("/", "\\")) or ".." in parts or (parts and ":" in parts[0]) or "\0" in member.name:
        raise _refusal(path, f"a member that would be written outside its folder: {member.name!r}")
    if member.issym() or member.islnk():
        raise _refusal(path, f"a link: {member.name!r}")
    if member.issparse():
        raise _refusal(path, f"a sparse file: {member.name!r}")
    if not (member.isreg() or member.isdir()):
        raise _refusal(path, f"a device or pipe: {member.name!r}")


def _refusal(path: Path, what: str) -> InputError:
    return InputError(f"{path} must hold only files and folders inside it, but has {what}", hint=_HINT)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") and part != "." for part in PurePosixPath(name).parts)


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    data = archive.extractfile(member)
    assert data is not None  # it is a regular file
    with data, target.open("wb") as file:
        shutil.copyfileobj(data, file, _COPY_BYTES)
