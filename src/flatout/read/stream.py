"""Read the decompressed bytes of a trace file in order, up to a limit.

In: a path. Out: `ByteStream.read(n)`. From a gzip or xz file that is truncated or damaged, the readable part is
returned, and `problem` describes the damage. Whether a file is compressed is decided by its first bytes, not by its
name.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from types import TracebackType

import msgspec

from flatout import units
from flatout.errors import InputError
from flatout.input_files import open_file

_INPUT_BYTES = 1 << 18
_WHOLE_FILE_BYTES = 1 << 25  # read at once of a file that is held in memory
_MAX_XZ_MEMORY_BYTES = 256 << 20  # xz -9 needs 65 MiB; a header can request 4 GiB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The maximum size of a decompressed input, checked while reading; sizes in headers are not trusted."""

    max_bytes: int = 64 << 30
    max_ratio: int = 1000  # DEFLATE cannot exceed 1032; ratios of real traces are below 50
    ratio_from_bytes: int = 1 << 30
    max_members: int = 100_000

    def check(self, name: str, num_read: int, num_written: int) -> None:
        too_large = num_written > self.max_bytes
        too_dense = num_written > self.ratio_from_bytes and num_written > self.max_ratio * num_read
        if too_large or too_dense:
            raise InputError(
                f"{name} must not unpack to more than {units.num_bytes(self.max_bytes)} or {self.max_ratio} times its "
                f"size, but {units.num_bytes(num_read)} of it already gave {units.num_bytes(num_written)}",
                hint="this looks like a decompression bomb; if you trust the file, unpack it yourself first",
            )


LIMITS = Limits()


class _Gzip:
    magic = b"\x1f\x8b"

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.pending = b""  # compressed bytes that were passed in but not used
        self.error: str | None = None

    @property
    def at_end(self) -> bool:
        return self._inner.eof

    def decompress(self, data: bytes, num_bytes: int) -> bytes:
        before = self._inner.copy()
        try:
            part = self._inner.decompress(data, num_bytes)
        except zlib.error as error:
            self.error = str(error)
            return _up_to_error(before, data, num_bytes)
        self.pending = self._inner.unconsumed_tail or self._inner.unused_data
        return part


def _up_to_error(inflate: zlib._Decompress, data: bytes, num_bytes: int) -> bytes:
    """Return the data before the damage, or before a wrong checksum; a zlib call that fails returns nothing."""
    parts: list[bytes] = []
    step = num_bytes
    while step := step // 16:
        while True:
            before = inflate.copy()
            try:
                part = inflate.decompress(data, step)
            except zlib.error:
                inflate = before
                break
            if not part:
                break
            parts.append(part)
            data = inflate.unconsumed_tail
    return b"".join(parts)


class _Xz:
    magic = b"\xfd7zXZ\x00"

    def __init__(self) -> None:
        import lzma  # only archives need it

        self._error_type = lzma.LZMAError
        self.error: str | None = None
        self._inner = lzma.LZMADecompressor(memlimit=_MAX_XZ_MEMORY_BYTES)
        self.pending = b""

    @property
    def at_end(self) -> bool:
        return self._inner.eof

    def decompress(self, data: bytes, num_bytes: int) -> bytes:
        try:
            part = self._inner.decompress(data, num_bytes)
        except self._error_type as error:
            self.error = str(error)
            return b""
        self.pending = self._inner.unused_data if self._inner.eof else b""
        return part


class ByteStream:
    """The decompressed bytes of a trace file. Use: `with ByteStream(path, name) as stream: stream.read(n)`."""

    def __init__(self, path: Path, name: str, limits: Limits = LIMITS) -> None:
        self.problem: str | None = None  # why the file could not be read to its end
        self._name = name
        self._limits = limits
        self._file = open_file(path)
        self._pending = self._file.read(_INPUT_BYTES)
        self._codec = next((codec for codec in (_Gzip, _Xz) if self._pending.startswith(codec.magic)), None)
        self._member = None if self._codec is None else self._codec()
        self._num_read = len(self._pending)
        self._num_written = 0

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def read(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes`; fewer only at the end."""
        if self._member is None:
            self._file.seek(-len(self._pending), os.SEEK_CUR)  # to read at once, without a copy
            self._pending = b""
            return self._file.read(num_bytes)
        parts = []
        missing = num_bytes
        while missing and (part := self._decompress(missing)):
            parts.append(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_all(self, max_bytes: int, hint: str, padding: bytes = b"") -> bytes:
        """Return everything, and then the padding; InputError, with the hint, if it is more than `max_bytes`."""
        parts = []
        num_read = 0
        size = os.fstat(self._file.fileno()).st_size
        at_once = _WHOLE_FILE_BYTES if self._member is not None else min(size, max_bytes) + 1
        while part := self.read(at_once):
            num_read += len(part)
            if num_read > max_bytes:
                limit = units.num_bytes(max_bytes)
                raise InputError(f"{self._name} must have at most {limit}, but has more", hint=hint)
            parts.append(part)
        return b"".join((*parts, padding)) if padding or len(parts) != 1 else parts[0]

    def _decompress(self, num_bytes: int) -> bytes:
        """Return at least one byte and at most `num_bytes`; none at the end."""
        assert self._member is not None
        while self.problem is None:
            if self._member.at_end and not self._begin_member():
                return b""
            part = self._member.decompress(self._pending, num_bytes)
            self._pending = self._member.pending
            if self._member.error is not None:
                self.problem = f"the compressed data is damaged ({self._member.error})"
            if part:
                self._num_written += len(part)
                self._limits.check(self._name, self._num_read, self._num_written)
                return part
            if self.problem is None and not self._pending and not self._member.at_end and not self._fill():
                self.problem = "the compressed data is truncated"
        return b""

    def _fill(self) -> bool:
        self._pending = self._file.read(_INPUT_BYTES)
        self._num_read += len(self._pending)
        return bool(self._pending)

    def _begin_member(self) -> bool:
        """Begin the next compressed file in the stream, if any; padding after the last one is ignored."""
        assert self._codec is not None
        self._pending = self._pending.lstrip(b"\0")
        while not self._pending:
            if not self._fill():
                return False
            self._pending = self._pending.lstrip(b"\0")
        if not self._pending.startswith(self._codec.magic):
            return False
        self._member = self._codec()
        return True
