"""The folder of a recording: created, joined by the other hosts of the same run, or refused.

    recording.json                 marks the folder as a recording, and identifies the run
    host-<hostname>.json           the command on that host, and how it ended
    host-<hostname>.samples.jsonl  samples of that host's activity
    host-<hostname>.storage.jsonl  counters of that host's file systems, if the stages of batches are timed
    rank<R>.steps.jsonl            the steps of a rank
    rank<R>.json.gz                its trace
    facts-rank<R>.json             facts about the job: its wrapper, loaders, optimizer
    patches-<hostname>-<pid>.jsonl the effects of patches, if some were requested
    diverted-<hostname>-<pid>.jsonl the files that a trial wrote, and where they went
    data-check-rank<R>.json        whether collectives returned known answers, if a trial asked
    failure-<hostname>-<pid>.json  how a rank failed, if it did
    attempts/<N>/                  steps and traces of ranks that were restarted N times
    inside-<hostname>.log          errors of the recorder, if any
    .state/                        communication between processes while the job runs

A host joins a folder of the same run (by the ID from Slurm or torchrun), or a folder to which another host still writes
for the same job: the command says several nodes, and both run the same program with the same meeting point. Any other
existing path is refused without `force`; with it, only a recording is replaced, and none to which a job still writes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.errors import OutputError
from flatout.input_files import decode_json, read_bytes
from flatout.inside.protocol import File, Variable, complete_name
from flatout.launch import with_environment
from flatout.launch.abandoned import has_lost_its_starter

SCHEMA, VERSION = "flatout/recording", 1
# The files of a recording, complete or incomplete.
_BY_RANK = (
    File.STEPS,
    File.TRACE,
    File.PACKED_TRACE,
    File.STALL_TRACE,
    File.PACKED_STALL_TRACE,
    File.FACTS,
    File.GRADIENTS,
    File.DATA_CHECK,
)
_BY_HOST_OR_PROCESS = (
    File.HOST,
    File.SAMPLES,
    File.STORAGE,
    File.LOG,
    File.PATCHES,
    File.DIVERTED,
    File.FAILURE,
    File.STAGES,
)
_ALIVE_S = 120.0
_MOMENT_S = 1.0
_FRESH_S = 10.0
_FROM_TORCHRUN = "torchrun-"  # before the rendezvous ID
# A batch script and the shell of `salloc` are one process each, and can record several runs one after the other. Slurm
# gives them this step number or a higher one, or none (slurm.h: SLURM_INTERACTIVE_STEP is the lowest).
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


class _HostEnd(msgspec.Struct, frozen=True):
    """What a file of a host says of its end."""

    end_unix_s: float | None = None


class Folder(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    run_id: str
    host_file: Path  # written by this process
    samples_file: Path | None  # None: another process on this host already does the sampling and packing
    is_first: bool  # this process created the folder, and reports on the whole run

    @property
    def state(self) -> Path:
        return self.path / File.STATE

    @property
    def storage_file(self) -> Path:
        return self.path / File.STORAGE.of(_hostname())


def default_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return a path below the working folder: the same for all tasks of a Slurm step, else one named by the time.

    A folder named by the time is created at once, so that jobs started in the same second, e.g. by a sweep, get
    different ones.
    """
    run_id = shared_run_id(environment)
    if run_id is not None:
        return Path("flatout-out", run_id)
    path = first = Path("flatout-out", time.strftime("%Y%m%d-%H%M%S"))
    with suppress(OSError):  # reported when the recording is created
        for number in count(2):
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError:
                path = first.with_name(f"{first.name}-{number}")
    return path


def shared_run_id(environment: Mapping[str, str]) -> str | None:
    """Return an ID that all processes of this run share and other runs do not; None if no launcher provides one."""
    job, step = environment.get("SLURM_JOB_ID"), environment.get("SLURM_STEP_ID", "")
    if job is not None and step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP:
        attempt = environment.get("SLURM_RESTART_COUNT", "0")  # increases when the job is requeued
        run_id = f"slurm-{job}.{step}"
        return run_id if attempt == "0" else f"{run_id}.{attempt}"
    if environment.get("TORCHELASTIC_RUN_ID", "none") != "none":
        return f"{_FROM_TORCHRUN}{environment['TORCHELASTIC_RUN_ID']}"
    return None


def open_folder(
    path: Path, *, force: bool, environment: Mapping[str, str] = os.environ, job_key: str | None = None
) -> Folder:
    """Create or join the recording at `path`. Raise OutputError if that is refused or fails.

    `job_key` is equal on all nodes of a job that has several; None for any other job.
    """
    run = _RunNames(run_id=shared_run_id(environment), job_key=job_key, is_restarted=_is_restarted(environment))
    run_id = run.run_id
    is_new, is_begun, is_first = not path.exists(), False, False
    try:
        is_first = not _may_join(path, run)
        if is_first:
            try:
                _clear(path, force=force)
            except OutputError:
                if run_id is None or not _may_join(path, run):
                    raise
            run_id = run_id or uuid.uuid4().hex[:12]
            path.mkdir(parents=True, exist_ok=True)
            is_begun = True
            is_first = _mark(path, run_id, job_key)
            run_id = run_id if is_first else _names_of(path).run_id or run_id
        else:
            run_id = run_id or _names_of(path).run_id or "unknown"
        (path / File.STATE).mkdir(exist_ok=True)
        host_file, samples_file = _host_files(path)
    except OSError as error:
        if is_first and is_begun:
            _take_back(path, is_new=is_new)
        raise output_error(path, error) from error
    return Folder(path=path.resolve(), run_id=run_id, host_file=host_file, samples_file=samples_file, is_first=is_first)


def host_files(path: Path) -> list[Path]:
    return sorted(path.glob(File.HOST.glob))


class _RunNames(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is recognised by."""

    run_id: str | None = None
    job_key: str | None = None
    is_restarted: bool = False  # the launcher has started its ranks again


def _is_restarted(environment: Mapping[str, str]) -> bool:
    return environment.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def _mark(path: Path, run_id: str, job_key: str | None) -> bool:
    """Create the file that marks a recording; return False if another task of the run has just done so."""
    content = {"schema": SCHEMA, "version": VERSION, "tool_version": __version__, "run_id": run_id, "job_key": job_key}
    try:
        with (path / File.RECORDING).open("x", encoding="utf-8") as file:
            file.write(json.dumps({**content, "start_unix_s": round(time.time(), 3)}) + "\n")
    except FileExistsError:
        return False
    return True


def _take_back(path: Path, *, is_new: bool) -> None:
    """Remove a recording that could not begin, so that the same command works once the disk has space."""
    with suppress(OSError):
        (path / File.RECORDING).unlink(missing_ok=True)
    with suppress(OSError):
        (path / File.STATE).rmdir()
    if is_new:
        with suppress(OSError):
            path.rmdir()


def _names_of(path: Path) -> _RunNames:
    """Return what the run that made the recording is recognised by; nothing if it cannot be read."""
    try:
        return decode_json(read_bytes(path / File.RECORDING), _RunNames)
    except (OSError, msgspec.DecodeError):
        return _RunNames()


def _may_join(path: Path, run: _RunNames) -> bool:
    """Whether the recording can be joined, now or in a moment: tasks can start at the same time."""
    deadline = time.monotonic() + _MOMENT_S
    while not _is_ours_to_join(path, run):
        is_coming = run.run_id is not None or (run.job_key is not None and _is_being_made(path))
        if not path.exists() or not is_coming or time.monotonic() > deadline:
            return False
        time.sleep(_MOMENT_S / 10)
    return True


def _is_being_made(path: Path) -> bool:
    """Whether another host has just created the folder, and not yet recorded its run."""
    if not path.is_dir() or abs(time.time() - path.stat().st_mtime) > _FRESH_S:
        return False
    return {entry.name for entry in path.iterdir()} - {File.STATE} == {File.RECORDING}


def _is_ours_to_join(path: Path, run: _RunNames) -> bool:
    theirs = _names_of(path)
    if theirs.run_id is None:
        return False
    if run.run_id is not None:
        return theirs.run_id == run.run_id and (run.is_restarted or not _is_finished_rendezvous(path, run.run_id))
    if run.job_key is None or run.job_key != theirs.job_key:
        return False
    hosts = host_files(path)
    is_here = any(File.HOST.part(file.name) == _hostname() for file in hosts)
    return bool(hosts) and not is_here and all(_is_running(file) for file in hosts)


def _is_finished_rendezvous(path: Path, run_id: str) -> bool:
    """Whether a run of torchrun's rendezvous ID has ended here: the same ID can be given to the next job."""
    hosts = host_files(path)
    return run_id.startswith(_FROM_TORCHRUN) and bool(hosts) and not any(_is_running(file) for file in hosts)


def _is_running(host_file: Path) -> bool:
    """Whether the host's command is still running, with recent samples."""
    try:
        text = read_bytes(host_file)  # empty: claimed a moment ago
        has_ended = bool(text) and decode_json(text, _HostEnd).end_unix_s is not None
        newest = max(file.stat().st_mtime for file in host_file.parent.glob(f"{host_file.stem}*"))
    except (OSError, ValueError, msgspec.DecodeError):
        return False
    return not has_ended and abs(time.time() - newest) < _ALIVE_S


def _hostname_in(host_file: Path) -> str:
    """Return the host that a host file is of; a second process of the host has its PID in the name, too."""
    return re.sub(r"\.\d+$", "", str(File.HOST.part(host_file.name)))


def _is_being_written(host_file: Path) -> bool:
    """Whether a job still writes to the recording; on this host, a starter that was killed is seen at once."""
    recording = host_file.parent.resolve()
    if _hostname_in(host_file) == _hostname() and has_lost_its_starter(recording / File.STATE):
        return any(with_environment(lambda environment: environment.get(Variable.RECORDING) == str(recording)))
    return _is_running(host_file)


def _clear(path: Path, *, force: bool) -> None:
    """Remove the recording at `path` if `force` is set. Raise OutputError if anything else exists there."""
    if not path.exists():
        return
    if not path.is_dir():
        raise OutputError(f"`{path}` is a file; a recording is a folder", hint="pass another name with --out")
    entries = [entry for entry in path.iterdir() if entry.name != File.STATE]
    if not entries:
        return
    writing = {_hostname_in(file) for file in host_files(path) if _is_being_written(file)}
    if writing:
        raise OutputError(
            f"a job on {', '.join(sorted(writing))} is being recorded in `{path}`, and this job is not part of it",
            hint="pass another folder with --out, or wait until that job has ended",
        )
    if not force:
        raise OutputError(
            f"`{path}` already exists, and nothing is overwritten",
            hint="pass another folder with --out, or --force to replace the recording there",
        )
    others = [entry.name for entry in entries if not _is_ours(entry)]
    if others:
        raise OutputError(
            f"`{path}` holds more than a recording, such as `{min(others)}`, and is not replaced",
            hint="pass another folder with --out",
        )
    for entry in [*entries, *(path / File.STATE).glob("*")]:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _is_ours(entry: Path) -> bool:
    if entry.name == File.ATTEMPTS and not entry.is_symlink() and entry.is_dir():
        inner = [file for folder in entry.iterdir() for file in (folder.iterdir() if folder.is_dir() else [folder])]
        return all(_is_of_recording(file.name) and file.is_file() for file in inner)
    if entry.name == File.XLA and not entry.is_symlink() and entry.is_dir():
        return all(each.name.startswith("rank") for each in entry.iterdir())
    return _is_of_recording(entry.name)


def _is_of_recording(name: str) -> bool:
    name = complete_name(name)
    if name == File.RECORDING or any(kind.rank(name) is not None for kind in _BY_RANK):
        return True
    return any(kind.part(name) is not None for kind in _BY_HOST_OR_PROCESS)


def _host_files(path: Path) -> tuple[Path, Path | None]:
    """Claim file names with this host's name; if another task of the run has those, with this PID too."""
    first = path / File.HOST.of(_hostname())
    for file in (first, path / File.HOST.of(f"{_hostname()}.{os.getpid()}")):
        with suppress(FileExistsError):
            os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            return file, path / File.SAMPLES.of(_hostname()) if file == first else None
    raise FileExistsError


def _hostname() -> str:
    return os.uname().nodename


def output_error(path: Path, error: OSError) -> OutputError:
    reason = (error.strerror or str(error)).lower()
    return OutputError(
        f"the recording cannot be written to `{path}`: {reason}; the job was not started",
        hint="pass a writable folder with free space, with --out",
    )
