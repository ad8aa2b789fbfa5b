r"""Read Slurm's accounting, as `sacct --parsable2` (or `squeue` with `|` between columns) prints it, into `Attempts`.

    sacct -a -D -P -S 2026-01-01 --format=JobID,State,AllocTRES,ElapsedRaw,Account,User,Submit,Start,End > jobs.txt

In: text with a header that names the columns, in any order and with any other columns between them; output of `-p` and
`--delimiter` is accepted too; plain or gzip. The required columns are JobID, State, AllocTRES (or AllocGRES with
AllocNodes), and ElapsedRaw, Elapsed, or Start with End. With -D, Slurm prints a row for each attempt of a requeued job.

Out: an attempt for each row of a job. The steps of a job repeat the job's own time, so they are counted and excluded.
Names and comments can contain line breaks and bytes that are not UTF-8. A row that cannot be read completely is
excluded, with its line and the reason: no field is ever guessed, and missing numbers do not count as zeros.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from flatout.errors import InputError
from flatout.input_files import read_bytes
from flatout.read.slurm_values import (
    duration_s,
    exit_code_of,
    gpus_of_gres,
    gpus_of_tres,
    has_time_zone,
    limit_s,
    state_of,
    time_s,
)
from flatout.records.attempts import RUNNING_STATES, WAITING_STATES, Attempts, Clock, JobAttempt, SkippedRow

T = TypeVar("T")
Progress = Callable[[int, int], None]

COMMAND = "sacct -a -D -P --format=JobID,State,AllocTRES,ElapsedRaw,Account,User,Submit,Start,End,WCKey"

# squeue's name of each column that sacct names differently.
_ALIASES = {
    "st": "state",
    "name": "jobname",
    "time": "elapsed",
    "timeused": "elapsed",
    "timelimit": "timelimit",
    "submittime": "submit",
    "eligibletime": "eligible",
    "starttime": "start",
    "endtime": "end",
    "nodes": "allocnodes",
    "nnodes": "allocnodes",
    "tresalloc": "alloctres",
    "trespernode": "allocgres",
    "reqgres": "reqgres",
}
_FREE_TEXT = {"jobname", "comment", "admincomment", "systemcomment", "submitline", "workdir", "extra", "licenses"}
_JOB = re.compile(r"(?P<job>\d+(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?)(?P<step>\.[\w+]+)?")
_ROWS_A_LOOK = 10_000
_SHARED = re.compile(r"gres/(shard|mps)\b")
_NOT_GATHERED_J = 1 << 63  # Slurm's "no value" is close to 2^64
_SHOWN_PROJECTS = ("wckey", "qos", "partition", "user", "jobname", "comment")


def read_sacct(path: Path, *, project: str = "wckey", progress: Progress | None = None) -> Attempts:
    """Read the file. Raises InputError if it is not such a table; `project` names the column with a job's project.

    `progress` is called at intervals with the number of lines read so far and the total.
    """
    try:
        data = read_bytes(path)
    except OSError as error:
        raise InputError(f"`{path}` cannot be read: {(error.strerror or str(error)).lower()}") from None
    if data.startswith(b"\x1f\x8b"):
        try:
            data = gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"`{path}` is damaged: {error}") from None
    return parse_sacct(data, name=str(path), project=project, progress=progress)


def parse_sacct(data: bytes, *, name: str, project: str = "wckey", progress: Progress | None = None) -> Attempts:
    """Parse text that has been read already, as `read_sacct` does for a file."""
    if project not in _SHOWN_PROJECTS:
        raise InputError(f"a project must be one of the columns {', '.join(_SHOWN_PROJECTS)}, but is `{project}`")
    lines = data.split(b"\n")
    first = next((number for number, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise InputError(f"`{name}` is empty", hint=f"write it with: {COMMAND} > FILE")
    table = _Table(name, lines[first].rstrip(b"\r"), project)
    return table.read(lines, first + 1, progress)


def merged(files: Sequence[Attempts]) -> Attempts:
    """Merge several exports; an attempt in two exports counts once, as in the later export."""
    attempts = [attempt for file in files for attempt in file.attempts]
    without_repeats = _without_repeats(attempts)
    num_repeated = len(attempts) - len(without_repeats)
    return Attempts(
        path=", ".join(file.path for file in files),
        attempts=without_repeats,
        num_rows=sum(file.num_rows for file in files),
        num_steps=sum(file.num_steps for file in files),
        num_repeated=sum(file.num_repeated for file in files) + num_repeated,
        left_out=tuple(row for file in files for row in file.left_out),
        notes=tuple(dict.fromkeys(note for file in files for note in file.notes)),
        clocks=tuple(sorted({clock for file in files for clock in file.clocks})),
    )


def _without_repeats(attempts: Sequence[JobAttempt]) -> tuple[JobAttempt, ...]:
    """Return each attempt once, the longer one of two; those without a start cannot be recognized, and all stay."""
    kept: dict[object, JobAttempt] = {}
    for number, attempt in enumerate(attempts):
        key: object = (attempt.cluster, attempt.job, attempt.start_s)
        if attempt.start_s is None:
            key = number
        earlier = kept.get(key)
        if earlier is None or attempt.elapsed_s >= earlier.elapsed_s:
            kept[key] = attempt
    return tuple(kept.values())


class _NoRow(NamedTuple):
    """Lines that are not rows of the table."""

    reason: str
    has_moved_columns: bool  # there are too many or too few columns


@dataclass(slots=True)
class _Counts:
    """The numbers of rows of each kind."""

    rows: int = 0
    steps: int = 0
    repeated: int = 0
    undecoded: int = 0  # with bytes that are not UTF-8
    moved: int = 0  # with too many or too few columns
    without_gpus: int = 0  # attempts that requested GPUs, and have none in AllocTRES
    shared: int = 0  # attempts with shares of GPUs

    def notes(self, delimiter: str) -> tuple[str, ...]:
        notes = []
        if self.undecoded:
            notes.append(f"{self.undecoded:,} rows have bytes that are not UTF-8; they appear in names as \ufffd")
        if self.moved and delimiter == "|":
            notes.append("a name or comment with `|` in it moves the columns: sacct --delimiter='@@' keeps them apart")
        if self.shared:
            notes.append(
                f"{self.shared:,} attempts held shares of GPUs (gres/shard or gres/mps), which are not counted: how"
                " many shares a GPU has is unknown"
            )
        if self.without_gpus:
            notes.append(
                f"{self.without_gpus:,} attempts requested GPUs, but AllocTRES has none:"
                " AccountingStorageTRES of slurm.conf must have gres/gpu"
            )
        return tuple(notes)


class _Table:
    """Reads the rows of one file by its columns."""

    def __init__(self, name: str, header: bytes, project: str) -> None:
        self._name = name
        self._header = header
        text = header.decode("utf-8", "replace").lstrip("\ufeff")
        names = re.match(r"\s*%?([A-Za-z]\w*)(\W+)(?=[A-Za-z])", text)
        if names is None or (names[2].isspace() and "\t" not in names[2]):
            raise self._no_header(text)
        self._delimiter = names[2]
        columns = [_folded(column) for column in text.split(self._delimiter)]
        self._position = {column: place for place, column in reversed(list(enumerate(columns))) if column}
        if not {"jobid", "state"} <= self._position.keys():
            raise self._no_header(text)
        self._num_delimiters = len(columns) - 1
        self._project = project
        self._clocks: set[Clock] = set()
        self._is_text = [column in _FREE_TEXT for column in columns]
        self._check_columns()

    def _no_header(self, text: str) -> InputError:
        return InputError(
            f"`{self._name}` must begin with a header that has JobID and State between `|`, but begins with"
            f" `{text.strip()[:60]}`",
            hint=f"with -P, and without -n or --noheader: {COMMAND} > FILE",
        )

    def _check_columns(self) -> None:
        has = self._position.keys()
        missing = []
        if "alloctres" not in has and not {"allocgres", "allocnodes"} <= has:
            missing.append("AllocTRES")
        if not ({"elapsedraw"} & has or {"elapsed"} & has or {"start", "end"} <= has):
            missing.append("ElapsedRaw")
        if missing:
            raise InputError(
                f"`{self._name}` must have the columns JobID, State, AllocTRES and ElapsedRaw, but has no"
                f" {' and no '.join(missing)}",
                hint=f"{COMMAND} > FILE",
            )

    def read(self, lines: Sequence[bytes], first: int, progress: Progress | None) -> Attempts:
        attempts: list[JobAttempt] = []
        left_out: list[SkippedRow] = []
        seen: set[bytes] = set()
        counts = _Counts()
        for number, row in self._records(lines, first):
            counts.rows += 1
            if progress is not None and counts.rows % _ROWS_A_LOOK == 0:
                progress(number, len(lines))
            if isinstance(row, _NoRow):
                left_out.append(SkippedRow(line=number, reason=row.reason))
                counts.moved += row.has_moved_columns
                continue
            text = row.decode("utf-8", "replace")
            counts.undecoded += "\ufffd" in text
            fields = text.split(self._delimiter)
            try:
                attempt = self._attempt(fields, number)
            except ValueError as error:
                left_out.append(SkippedRow(line=number, reason=" ".join(str(error).split())))
                continue
            if attempt is None:
                counts.steps += 1
                continue
            if attempt.start_s is not None and row in seen:
                counts.repeated += 1
                continue
            seen.add(row)
            attempts.append(attempt)
            if not attempt.num_gpus:
                counts.without_gpus += bool(attempt.elapsed_s and attempt.num_requested_gpus)
                counts.shared += _SHARED.search(self._text(fields, "alloctres") or "") is not None
        return Attempts(
            path=self._name,
            attempts=tuple(attempts),
            num_rows=counts.rows,
            num_steps=counts.steps,
            num_repeated=counts.repeated,
            left_out=tuple(left_out),
            notes=counts.notes(self._delimiter),
            clocks=tuple(sorted(self._clocks)),
        )

    def _records(self, lines: Sequence[bytes], first: int) -> Iterator[tuple[int, bytes | _NoRow]]:
        """Yield line numbers from 1, each with its row, or with the reason why it is not a row."""
        delimiter = self._delimiter.encode()
        place = first
        while place < len(lines):
            line = lines[place].rstrip(b"\r")
            if not line.strip() or line == self._header:  # the header of a second export appended to the first
                place += 1
                continue
            end = place + 1
            count = line.count(delimiter)
            while count < self._num_delimiters and end < len(lines):
                more = lines[end].rstrip(b"\r")
                line += b"\n" + more
                count += more.count(delimiter)
                end += 1
            if count != self._num_delimiters:
                columns = lines[place].count(delimiter) + 1
                reason = f"the line has {columns} columns, and the header {self._num_delimiters + 1}"
                yield place + 1, _NoRow(reason, has_moved_columns=True)
                place += 1
                continue
            if end > place + 1 and any(
                b"\n" in field and not is_text
                for field, is_text in zip(line.split(delimiter), self._is_text, strict=True)
            ):
                yield place + 1, _NoRow("the row is truncated, or is not a row", has_moved_columns=False)
                place += 1
                continue
            while self._is_text[-1] and end < len(lines) and lines[end].strip() and delimiter not in lines[end]:
                line += b"\n" + lines[end].rstrip(b"\r")
                end += 1
            yield place + 1, line
            place = end

    def _attempt(self, fields: Sequence[str], line: int) -> JobAttempt | None:
        """Return the attempt of a row; None for a job's step. Raises ValueError for a value that Slurm never writes."""
        found = _JOB.fullmatch(self._text(fields, "jobid") or "")
        if found is None:
            raise ValueError(f"a JobID must look like 12, 12_7 or 12+1, but is `{self._text(fields, 'jobid') or ''}`")
        if found["step"] is not None:
            return None
        state = state_of(self._text(fields, "state") or "")
        start_s, end_s = self._value(fields, "start", time_s), self._value(fields, "end", time_s)
        self._note_clocks(fields)
        is_over = state not in WAITING_STATES | RUNNING_STATES
        elapsed_s = self._elapsed_s(fields, start_s, end_s)
        num_gpus, gpu_types = self._gpus(fields, elapsed_s)
        requested = self._text(fields, "reqtres")
        exit_code, signal = exit_code_of(self._text(fields, "exitcode") or "")
        energy_j = self._value(fields, "consumedenergyraw", _energy_j)
        project = self._text(fields, self._project)
        return JobAttempt(
            job=found["job"],
            state=state,
            elapsed_s=elapsed_s,
            num_gpus=num_gpus,
            gpu_types=gpu_types,
            num_requested_gpus=gpus_of_tres(requested)[0] if requested is not None else None,
            num_nodes=self._value(fields, "allocnodes", _count),
            nodes=self._text(fields, "nodelist"),
            name=self._text(fields, "jobname"),
            user=self._text(fields, "user"),
            account=self._text(fields, "account"),
            project=project.lstrip("*") or None if project else None,  # `*` marks a user's default wckey
            partition=self._text(fields, "partition"),
            qos=self._text(fields, "qos"),
            cluster=self._text(fields, "cluster"),
            submit_s=self._value(fields, "submit", time_s),
            eligible_s=self._value(fields, "eligible", time_s),
            start_s=start_s,
            end_s=end_s if is_over else None,  # for a running job, squeue shows the time at which it must end
            time_limit_s=self._time_limit_s(fields),
            exit_code=exit_code,
            signal=signal,
            energy_j=energy_j,
            line=line,
        )

    def _note_clocks(self, fields: Sequence[str]) -> None:
        """Remember whether the row's times are by the cluster's clock or say their time zone."""
        for name in ("start", "end"):
            text = self._text(fields, name)
            if text is not None and text[:1].isdigit():
                self._clocks.add("utc" if has_time_zone(text) else "local")

    def _elapsed_s(self, fields: Sequence[str], start_s: float | None, end_s: float | None) -> float:
        elapsed = self._value(fields, "elapsedraw", _seconds)
        if elapsed is None:
            elapsed = self._value(fields, "elapsed", duration_s)
        if elapsed is None and start_s is not None and end_s is not None:
            if end_s < start_s:
                raise ValueError("End is before Start")
            elapsed = end_s - start_s - (self._value(fields, "suspended", duration_s) or 0.0)
        if elapsed is None:
            if start_s is None:
                return 0.0  # the job has not begun
            raise ValueError("its run time is unknown: it has no ElapsedRaw, no Elapsed and no End")
        return elapsed

    def _gpus(self, fields: Sequence[str], elapsed_s: float) -> tuple[float, dict[str, float]]:
        tres = self._text(fields, "alloctres")
        if tres is not None:
            number, types = gpus_of_tres(tres)
            if number:
                return number, types
        gres = self._text(fields, "allocgres")
        if gres is not None:
            num_nodes = self._value(fields, "allocnodes", _count)
            if num_nodes is None:
                raise ValueError("AllocGRES counts one node, and AllocNodes is missing")
            return gpus_of_gres(gres, num_nodes)
        if tres is None and elapsed_s and "alloctres" in self._position:
            raise ValueError("it ran, but AllocTRES is empty, so its number of GPUs is unknown")
        return 0.0, {}

    def _time_limit_s(self, fields: Sequence[str]) -> float | None:
        minutes = self._text(fields, "timelimitraw")
        if minutes is not None and minutes.isascii() and minutes.isdigit():
            return 60.0 * (self._value(fields, "timelimitraw", _count) or 0)
        return self._value(fields, "timelimit", limit_s)

    def _text(self, fields: Sequence[str], column: str) -> str | None:
        place = self._position.get(column)
        return (fields[place].strip() or None) if place is not None else None

    def _value(self, fields: Sequence[str], column: str, parse: Callable[[str], T | None]) -> T | None:
        text = self._text(fields, column)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            raise ValueError(f"{column}: {error}") from None


def _folded(column: str) -> str:
    name = column.strip().casefold().partition("%")[0].replace("_", "").replace(" ", "")
    return _ALIASES.get(name, name)


_MAX_DIGITS = 20  # of a count; Slurm's own have 64 bits


def _count(text: str) -> int | None:
    if not text.isascii() or not text.isdigit():
        raise ValueError(f"a count must be a whole number, but is `{text}`")
    if len(text) > _MAX_DIGITS:
        raise ValueError(f"a count must have at most {_MAX_DIGITS} digits, but has {len(text)}")
    return int(text)


def _seconds(text: str) -> float | None:
    return float(found) if (found := _count(text)) is not None else None


def _energy_j(text: str) -> float | None:
    """Return the energy; None for 0, which Slurm writes if the energy is not measured."""
    joules = _count(text)
    return float(joules) if joules and joules < _NOT_GATHERED_J else None
