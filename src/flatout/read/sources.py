"""Find the trace files in the paths that the user named.

In: files, folders and archives. Out: `TraceSource`s, which can be sent to another process. Archives are unpacked into a
private folder that is removed at the end of the `with` block. Folders are searched one level deep; other JSON files
next to traces (settings, reports of Flatout) are skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.inside.protocol import File
from flatout.read.event_text import TRACE_OF_OURS
from flatout.read.processes import RankPart
from flatout.read.ranks import rank_in_name
from flatout.read.recognise import format_of_head
from flatout.read.stream import LIMITS, ByteStream, Limits
from flatout.records.events import Quality, TraceFormat

_TRACE_SUFFIXES = (".json", ".json.gz", ".pb", ".sqlite", ".db")
_BINARY_SUFFIXES = (".pb", ".sqlite", ".db")  # recognised by their first bytes
_XPLANE = ".xplane.pb"
_JAX_TRACE = ".trace.json.gz"  # the same recording as the .xplane.pb in its folder, with less in it
_PERFETTO_TRACE = "perfetto_trace.json.gz"  # of jax.profiler.trace(create_perfetto_trace=True): a copy of that
# Where JAX and TensorFlow put a profile within the folder that the user names, or within one folder per rank.
_PROFILES = tuple(
    f"{parent}plugins/profile/*/*{suffix}" for parent in ("", "*/") for suffix in (_XPLANE, "trace.json.gz")
)
_PROFILE_FOLDERS = re.compile(r"/plugins/profile/[^/]+(?=/[^/]+$)")
_SNIFFED_BYTES = 1 << 16
_HINT = (
    "pass a trace (.json, .json.gz, .xplane.pb, .sqlite, .db), a folder of them, or an archive (.tar, .tar.gz, .tar.xz)"
)


class TraceSource(msgspec.Struct, frozen=True, kw_only=True):
    """One trace file to read."""

    path: str  # on disk
    name: str  # as shown to the user: the file, or the archive and its member
    size_bytes: int  # on disk
    rank_hint: int | None = None  # from the file name
    quality: tuple[Quality, ...] = ()  # notes on its archive or folder
    archive: str | None = None  # the archive that it was unpacked from, into a folder that exists only on this machine
    part: RankPart | None = None  # the rank to read, of a file with several; None: the whole file

    @property
    def whole_name(self) -> str:
        """Return the name of the file, which all of its ranks share."""
        return self.name if self.part is None else self.name.removesuffix(f" ({self.part.name})")

    def split(self, parts: Sequence[RankPart]) -> list[TraceSource]:
        """Return one source per rank of a file with several."""
        named = "the names of the processes" if parts[0].process is None else "the processes"
        if parts[0].device is not None:
            named = "the devices"
        named = parts[0].by or named
        note = Quality(
            problem=f"{self.name} has the traces of {len(parts)} ranks",
            effect=f"they were separated by {named}",
        )
        sources = [
            msgspec.structs.replace(self, name=f"{self.name} ({part.name})", part=part, quality=()) for part in parts
        ]
        sources[0] = msgspec.structs.replace(sources[0], quality=(*self.quality, note))
        return sources


@contextmanager
def open_sources(paths: Sequence[Path], *, limits: Limits = LIMITS) -> Iterator[list[TraceSource]]:
    """Yield the traces in `paths`, in the order given and sorted within a folder or archive.

    Raises InputError if a path cannot be read, contains no trace, or is an archive that would write outside its folder
    or unpack to more than `limits`.
    """
    with ExitStack() as stack:
        sources: list[TraceSource] = []
        for path in paths:
            sources += _sources(path, stack, limits)
        yield sources


def _sources(path: Path, stack: ExitStack, limits: Limits) -> list[TraceSource]:
    try:
        if path.is_dir():
            notes: list[Quality] = []
            return _in_folder(path, list(_files(path, notes)), str(path), limits, notes)
        if not path.exists():
            raise InputError(f"{path} does not exist", hint="check the path")
        if not path.is_file():
            raise InputError(f"{path} is not a file, folder or archive", hint=_HINT)
        if _is_archive(path):
            return _in_archive(path, stack, limits)
        return [_source(path, str(path))]
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", hint="check its permissions") from error


def _is_archive(path: Path) -> bool:
    """Detect an archive by its first bytes after decompression."""
    with ByteStream(path, str(path)) as stream:
        return stream.read(512)[257:].startswith(b"ustar")


def _in_archive(path: Path, stack: ExitStack, limits: Limits) -> list[TraceSource]:
    import tempfile  # with tarfile, its import is a tenth of the start-up time for a single trace

    from flatout.read.archives import unpack

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flatout-")))
    unpacked = unpack(path, folder, _TRACE_SUFFIXES, limits)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    notes = [_repeated(path, name) for name in unpacked.repeated_names]
    if unpacked.problem is not None:
        if not any(file.stat().st_size for file in files):
            raise InputError(f"{path} is a damaged archive: {unpacked.problem}", hint="copy or pack it again")
        notes.append(_damaged(path, unpacked.problem))
    sources = _in_folder(folder, files, str(path), limits, notes)
    return [msgspec.structs.replace(source, archive=str(path)) for source in sources]


def _repeated(path: Path, name: str) -> Quality:
    return Quality(
        problem=f"{path} has several members called {name}",
        effect="the last of them was read, as tar does; if they are traces of different ranks, the others are missing",
    )


def _damaged(path: Path, problem: str) -> Quality:
    return Quality(
        problem=f"{path} is a damaged archive: {problem}",
        effect="traces after the damage are missing, so waiting for their ranks cannot be separated from transfer",
    )


def _files(folder: Path, notes: list[Quality]) -> Iterator[Path]:
    """Yield files that may be traces, first in the folder, then in its subfolders; unreadable ones go to `notes`."""
    children = sorted(child for child in folder.iterdir() if not child.name.startswith("."))
    yield from (child for child in children if child.is_file())
    yield from (path for pattern in _PROFILES for path in sorted(folder.glob(pattern)) if path.is_file())
    for child in children:
        try:
            if child.is_dir():
                yield from sorted(
                    grandchild for grandchild in child.iterdir() if grandchild.is_file() and grandchild.name[0] != "."
                )
        except OSError as error:
            problem = f"{child} cannot be read: {error.strerror or error}"
            notes.append(Quality(problem=problem, effect="this folder was skipped"))


def _in_folder(
    folder: Path, files: Iterable[Path], shown: str, limits: Limits, notes: Sequence[Quality]
) -> list[TraceSource]:
    """Return the traces among the files; the last one carries the notes."""
    files = [file for file in files if file.name.endswith(_TRACE_SUFFIXES) and not _is_of_a_stall(file)]
    sources = [
        _source(file, f"{shown}/{file.relative_to(folder)}")
        for file in _originals(files)
        if _may_be_trace(file, limits)
    ]
    if not sources:
        raise InputError(f"{shown} holds no trace", hint=_HINT)
    return [*sources[:-1], msgspec.structs.replace(sources[-1], quality=tuple(notes))]


def _originals(files: Sequence[Path]) -> list[Path]:
    """Return the files without those that JAX writes of a profile next to a better one, each with less in it."""
    profiles = {str(file).removesuffix(_XPLANE) for file in files if file.name.endswith(_XPLANE)}
    folders = {file.parent for file in files if file.name.endswith((_XPLANE, _JAX_TRACE))}

    def is_copy(file: Path) -> bool:
        of_perfetto = file.name == _PERFETTO_TRACE and file.parent in folders
        return of_perfetto or str(file).removesuffix(_JAX_TRACE) in profiles

    return [file for file in files if not is_copy(file)]


def _is_of_a_stall(path: Path) -> bool:
    """Whether a file of a recording is the trace of a stall: a second trace of the same rank, read separately."""
    kinds = (File.STALL_TRACE, File.PACKED_STALL_TRACE)
    return any(kind.rank(path.name) is not None for kind in kinds)


def _source(path: Path, name: str) -> TraceSource:
    name = name.encode("utf-8", "backslashreplace").decode()  # a name that is not UTF-8 cannot be written to JSON
    rank_hint = rank_in_name(_PROFILE_FOLDERS.sub("", name))
    return TraceSource(path=str(path), name=name, size_bytes=path.stat().st_size, rank_hint=rank_hint)


def _may_be_trace(path: Path, limits: Limits) -> bool:
    """Whether to read a file that the user did not name: not if it is complete and has no events.

    An empty, damaged or unreadable file is kept, so that the reader reports the problem.
    """
    try:
        with ByteStream(path, str(path), limits) as stream:
            text = stream.read(_SNIFFED_BYTES)
    except OSError:
        return True
    if path.name.endswith(_BINARY_SUFFIXES):
        return path.name.endswith(_XPLANE) or format_of_head(text) != TraceFormat.KINETO
    if TRACE_OF_OURS.search(text[:256]):
        return False
    if not text.strip() or path.name.endswith((".trace.json", ".trace.json.gz")):
        return True
    if b'"schema"' in text[:256] and b'"flatout/' in text[:256]:
        return False
    return len(text) == _SNIFFED_BYTES or b'"traceEvents"' in text or b'"ph"' in text
