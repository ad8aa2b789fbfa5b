"""Run a command with the recorder loaded into its Python processes, while this host is sampled.

In: the command. Out: a folder, and how the job ended. A problem with the recording while the job runs never ends the
job: it is reported afterwards. Only PYTHONPATH and FLATOUT_* variables are changed in the job's environment.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.inside.protocol import DEFAULT_NUM_STEPS, File, ProcessEvent, Variable, partial_name
from flatout.launch import ExitStatus, run_local, with_environment, with_inside
from flatout.launch.abandoned import note_starter, remove_note
from flatout.profile.finish import count_processes, hosts_without_parent, pack_traces, tidy, wait_for
from flatout.profile.folder import Folder, open_folder, output_error
from flatout.records.recording import HostRecording
from flatout.secrets import write_private

# Set or unset here; the recorder's other variables are left to the caller.
_VARIABLES = {Variable.RECORDING, Variable.STEPS, Variable.WARMUP, Variable.LIGHT}
_SAMPLER_TIMEOUT_S = 10.0

RunCommand = Callable[[Sequence[str], Mapping[str, str]], ExitStatus]  # command and environment -> how it ended


class RecordOptions(msgspec.Struct, frozen=True, kw_only=True):
    num_steps: int = DEFAULT_NUM_STEPS
    warmup: int | None = None  # None: until step times are stable
    is_light: bool = False
    force: bool = False
    job_key: str | None = None  # equal on all nodes of a job that has several, which are recorded in one folder
    variables: dict[str, str] = {}  # more variables for the job, e.g. those of a trial


class RecordResult(msgspec.Struct, frozen=True, kw_only=True):
    path: Path
    ended: ExitStatus
    is_first: bool  # whether this is the first process that records this run; only that process reports on the run


def record(
    command: Sequence[str],
    path: Path,
    options: RecordOptions,
    *,
    shown_command: Sequence[str],
    sampler: Sequence[str] | None,
    environment: Mapping[str, str] = os.environ,
    run_command: RunCommand = run_local,
) -> RecordResult:
    """Run `command` until it ends and record it in `path`.

    `shown_command` is the command with its secrets masked, for the files. `sampler` is a command that samples this
    host; the path of its output file is appended to it, and it runs until its standard input closes. `run_command`
    starts the job and waits for it. Raise OutputError or InputError before the job starts.
    """
    folder = open_folder(path, force=options.force, environment=environment, job_key=options.job_key)
    run = HostRecording(
        tool_version=__version__,
        command=tuple(shown_command),
        run_id=folder.run_id,
        hostname=os.uname().nodename,
        is_light=options.is_light,
        start_unix_s=time.time(),
    )
    sampling = None
    try:
        write_run(folder, run)
        note_starter(folder.state, "flatout profile", shlex.join(shown_command))
        sampling = _start_sampler(sampler, folder, with_storage=Variable.LOADER_STAGES in options.variables)
        ended = run_command(command, job_environment(environment, folder.path, options))
    except OSError as error:
        _abandon(folder, sampling)
        raise output_error(path, error) from error
    except BaseException:
        _abandon(folder, sampling)
        raise
    _end_sampler(sampling)
    problems, hostnames = [], [run.hostname]
    if folder.samples_file is not None:
        all_have_ended = wait_for(folder.path, File.HOST.of(f"{run.hostname}*"), but=folder.host_file)
        hostnames = [run.hostname, *(hosts_without_parent(folder.path) if folder.is_first else ())]
        problems = pack_traces(folder.path, hostnames, all_have_ended=all_have_ended)
    counts = count_processes(folder.state, hostnames)
    run = msgspec.structs.replace(
        run,
        start_unix_s=ended.start_unix_s,
        end_unix_s=ended.end_unix_s,
        exit_code=ended.code,
        signal=ended.signal,
        num_pythons=counts[ProcessEvent.PYTHON],
        num_torch=counts[ProcessEvent.TORCH],
        num_old_pythons=counts[ProcessEvent.OLD_PYTHON],
        num_left_running=_num_left_running(folder.path) if counts[ProcessEvent.PYTHON] else 0,
        problems=tuple(problems),
    )
    try:
        write_run(folder, run)
    except OSError as error:
        problem = f"{folder.host_file} could not be written: {(error.strerror or str(error)).lower()}"
        print(f"flatout: {problem}", file=sys.stderr)
    if folder.is_first:
        wait_for(folder.path, File.HOST.glob, but=folder.host_file)
    tidy(folder.path)
    return RecordResult(path=folder.path, ended=ended, is_first=folder.is_first)


def _num_left_running(recording: Path) -> int:
    """Return the number of processes that outlive the job, e.g. if a script ends with `train &`; 0 if ranks trained."""
    if any(recording.glob(File.STEPS.glob)):
        return 0
    return sum(1 for _ in with_environment(lambda its: its.get(Variable.RECORDING) == str(recording)))


def job_environment(environment: Mapping[str, str], recording: Path, options: RecordOptions) -> dict[str, str]:
    """Return the environment of the job, which loads `inside/` into its Python processes."""
    job = with_inside({name: value for name, value in environment.items() if name not in _VARIABLES})
    job[Variable.RECORDING] = str(recording)
    job[Variable.STEPS] = str(options.num_steps)
    if options.warmup is not None:
        job[Variable.WARMUP] = str(options.warmup)
    if options.is_light:
        job[Variable.LIGHT] = "1"
    return job | options.variables


def _start_sampler(
    sampler: Sequence[str] | None, folder: Folder, *, with_storage: bool
) -> subprocess.Popen[bytes] | None:
    if sampler is None or folder.samples_file is None:
        return None
    options = ["--storage", str(folder.storage_file)] if with_storage else []
    return subprocess.Popen(
        [*sampler, str(folder.samples_file), *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end_sampler(sampling: subprocess.Popen[bytes] | None) -> None:
    if sampling is None:
        return
    assert sampling.stdin is not None
    with suppress(OSError):
        sampling.stdin.close()
    try:
        sampling.wait(_SAMPLER_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        sampling.kill()
        sampling.wait()


def _abandon(folder: Folder, sampling: subprocess.Popen[bytes] | None) -> None:
    """Remove what was created for a job that was not started, and the folder if it is empty then."""
    _end_sampler(sampling)
    mine = [folder.host_file, *([folder.samples_file, folder.storage_file] if folder.samples_file else [])]
    others = [file for file in folder.path.glob(f"{File.HOST.before}*") if file not in mine]
    remove_note(folder.state)
    for file in [*mine, *([] if others else [folder.path / File.RECORDING])]:
        file.unlink(missing_ok=True)
    for empty in (folder.state, folder.path):
        with suppress(OSError):
            empty.rmdir()


def write_run(folder: Folder, run: HostRecording) -> None:
    """Write the file of this host atomically, as another host may be reading it."""
    partial = folder.host_file.with_name(partial_name(folder.host_file.name))
    try:
        write_private(partial, msgspec.json.format(msgspec.json.encode(run)) + b"\n")
        partial.replace(folder.host_file)
    finally:
        partial.unlink(missing_ok=True)
