"""Read a recording's folder into a `Recording`. Only the folder is needed: no torch, no GPU, and on any machine.

If the ranks were restarted, each attempt was recorded separately. The last attempt that has a trace is read; if no
attempt has a trace, the last attempt that finished its warm-up; otherwise the last attempt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.input_files import decode_json, read_bytes, read_text
from flatout.inside.protocol import NOT_RECORDED, File
from flatout.profile.measure import measure
from flatout.profile.problems import problems
from flatout.profile.sample_lines import host_use, read_samples
from flatout.profile.step_lines import read_rank
from flatout.records.events import Quality
from flatout.records.recording import HostRecording, HostUse, RankRecording, Recording

_PACKED = ".gz"
# A line of the recorder's log; older recorders wrote "this one" for a second process of a rank.
_NOT_RECORDED = re.compile(rf"^\S+ pid \d+: (.+): (?:{NOT_RECORDED}|this one is not recorded)$", re.MULTILINE)


def is_recording(path: Path) -> bool:
    return (path / File.RECORDING).is_file()


def read_recording(path: Path, *, peaks: Mapping[str, float] | None = None) -> Recording:
    """Read the recording; damaged or missing files become its problems.

    `peaks` are measured FLOP/s by operand type for the MFU, instead of the vendor's. Raise InputError if `path` is not
    a recording.
    """
    if not is_recording(path):
        raise InputError(f"{path} is not a recording", hint="record one: flatout profile -- COMMAND")
    try:
        return _read(path, peaks)
    except OSError as error:
        raise InputError(
            f"{error.filename or path} cannot be read: {(error.strerror or str(error)).lower()}",
            hint="check its permissions"
            if isinstance(error, PermissionError)
            else "remove it, or copy the folder again",
        ) from error


def _training_hosts(files: Sequence[Path], ranks: list[RankRecording], damage: list[Quality]) -> list[HostUse]:
    """Return the use of each host that has a rank, and so not of a login node where `srun` was called."""
    sample_files = [file for file in files if File.SAMPLES.part(file.name) is not None]
    hosts = [host for file in sample_files if (host := _host(file, ranks, damage)) is not None]
    if not ranks:
        return hosts
    training = {rank.hostname for rank in ranks}
    return [host for host in hosts if host.hostname in training]


def _read(path: Path, peaks: Mapping[str, float] | None) -> Recording:
    damage: list[Quality] = []  # of files that cannot be used at all, or in part
    files = sorted(path.iterdir())
    attempts = {number: _Attempt(folder) for number, folder in _attempt_folders(path)}
    number = max(attempts, key=lambda number: (attempts[number].worth, number))
    ranks = attempts[number].ranks
    run_files = [file for file in files if File.HOST.part(file.name) is not None]
    runs = [run for file in run_files if (run := _run(file, damage)) is not None]
    hosts = _training_hosts(files, ranks, damage)
    return Recording(
        path=str(path),
        ranks=tuple(ranks),
        hosts=tuple(hosts),
        runs=tuple(runs),
        measured=measure(ranks, peaks),
        problems=(
            *_restarts(number, attempts),
            *_unrecorded(path),
            *attempts[number].damage,
            *damage,
            *problems(
                runs,
                ranks,
                attempts[number].traced,
                [host.hostname for host in hosts],
                has_xla=(path / File.XLA).is_dir(),
            ),
        ),
        attempt=number,
        num_attempts=len(attempts),
        traced_ranks=tuple(sorted({rank.rank for rank in ranks} & set(attempts[number].traced))),
        stall_traces=tuple(sorted(attempts[number].stall_traces.items())),
    )


class _Attempt:
    """The files of the ranks in one folder."""

    def __init__(self, folder: Path) -> None:
        files = sorted(folder.iterdir())
        step_files = [file for file in files if File.STEPS.rank(file.name) is not None]
        self.damage: list[Quality] = []
        ranks = [rank for file in step_files if (rank := _rank(file, self.damage)) is not None]
        self.ranks = sorted(ranks, key=lambda rank: rank.rank)
        names = [file.name.removesuffix(_PACKED) for file in files]
        self.traced = [traced for name in names if (traced := File.TRACE.rank(name)) is not None]
        recorded = {rank.rank for rank in self.ranks if rank.stall_window is not None}
        self.stall_traces: dict[int, str] = {}
        for file, name in zip(files, names, strict=True):
            rank_of_file = File.STALL_TRACE.rank(name)
            if rank_of_file is not None and rank_of_file in recorded:
                self.stall_traces[rank_of_file] = str(file)

    @property
    def worth(self) -> int:
        """Return a score for the available data: 3: a trace, 2: a measured step time, 1: steps, 0: nothing."""
        if any(rank.rank in self.traced for rank in self.ranks):
            return 3
        if any(rank.settled_step is not None for rank in self.ranks):
            return 2
        return 1 if self.ranks else 0


def _attempt_folders(path: Path) -> list[tuple[int, Path]]:
    again = [(int(folder.name), folder) for folder in path.glob(f"{File.ATTEMPTS}/*") if folder.name.isdecimal()]
    return [(0, path), *sorted(again)]


def _restarts(number: int, attempts: Mapping[int, _Attempt]) -> list[Quality]:
    if len(attempts) == 1:
        return []
    why = {3: "the last one with a trace", 2: "the last one that finished its warm-up"}
    return [
        Quality(
            problem=f"the ranks were restarted: {len(attempts)} attempts were recorded",
            effect=f"all numbers are from attempt {number + 1}, {why.get(attempts[number].worth, 'the last')}",
        )
    ]


def _unrecorded(path: Path) -> list[Quality]:
    """Return a note for each reason in the recorder's log why training processes were not recorded."""
    reasons: Counter[str] = Counter()
    for file in sorted(path.glob(File.LOG.glob)):
        reasons.update(_NOT_RECORDED.findall(read_text(file, errors="replace")))
    return [
        Quality(
            problem=f"{reason}: {count} such process{'es' * (count > 1)}",
            effect="not recorded, and in no total",
        )
        for reason, count in reasons.items()
    ]


def _rank(file: Path, damage: list[Quality]) -> RankRecording | None:
    try:
        return read_rank(file, loader_workers=_loader_workers(file.parent, File.STEPS.rank(file.name)))
    except InputError as error:
        damage.append(Quality(problem=str(error), effect="this rank's steps are missing"))
        return None


class _LoaderFacts(msgspec.Struct, frozen=True):
    loader_workers: int | None = None


class _FactsFile(msgspec.Struct, frozen=True):
    facts: _LoaderFacts


def _loader_workers(folder: Path, rank: int | None) -> int | None:
    """Return the workers of the rank's loader; None if its facts are missing or damaged, which `read_facts` reports."""
    try:
        return decode_json(read_bytes(folder / File.FACTS.of(rank)), _FactsFile).facts.loader_workers
    except (OSError, msgspec.DecodeError):
        return None


def _run(file: Path, damage: list[Quality]) -> HostRecording | None:
    data = read_bytes(file)
    if not data.strip():
        return None  # claimed but never written
    try:
        return decode_json(data, HostRecording)
    except msgspec.DecodeError as error:
        damage.append(Quality(problem=f"{file.name}: {error}", effect="this host's command and its end are unknown"))
        return None


def _host(file: Path, ranks: list[RankRecording], damage: list[Quality]) -> HostUse | None:
    """Read a host's samples during the measured steps of its ranks, or else all of its samples."""
    try:
        content = read_samples(file)
    except InputError as error:
        damage.append(Quality(problem=str(error), effect="this host's samples are missing"))
        return None
    if content is None:
        return None
    if content.bad:
        problem = f"{len(content.bad)} samples of a host cannot be read ({content.bad[0]})"
        damage.append(Quality(problem=problem, effect="they are in no mean"))
    hostname = File.SAMPLES.part(file.name)
    starts, ends = [], []
    for rank in ranks:
        if rank.hostname != hostname or rank.settled_step is None:
            continue
        steps = rank.steps
        is_measured = steps.number >= rank.settled_step
        if is_measured.any():
            first = int(is_measured.argmax())
            starts.append(int(steps.start_ns[first]) / 1e9)
            ends.append(int(steps.start_ns[-1]) / 1e9 + float(steps.duration_s[-1]))
    return host_use(content, min(starts, default=None), max(ends, default=None))
