"""Profile how a job makes its batches: record the command, read the reports of its processes, find the causes.

Composes `profile`, `loading` and `storage` for `flatout data`. Nothing is printed but problems with the recording.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from flatout.errors import InputError
from flatout.inside.protocol import File, Variable
from flatout.launch import ExitStatus
from flatout.loading.profile import loading_profile
from flatout.loading.storage_causes import data_bytes, device_bytes, mounts_of, read_bytes, waiting_s, with_storage
from flatout.profile import Options, is_recording, read_recording, record
from flatout.profile.folder import default_path
from flatout.records.loading import LoadingProfile
from flatout.records.recording import Recording
from flatout.records.storage import HostStorage, StorageVerdict
from flatout.run.several_nodes import key_of_nodes
from flatout.secrets import masked_command
from flatout.storage.snapshots import read_snapshots
from flatout.storage.use import host_storage
from flatout.storage.verdict import JobReads, storage_verdict


class ProfiledLoading(msgspec.Struct, frozen=True, kw_only=True):
    profile: LoadingProfile | None  # None on a node that is not the first
    ended: ExitStatus


def profile_loading(command: Sequence[str], *, out: Path | None, force: bool) -> ProfiledLoading:
    """Run the command and return the profile of its loaders. Raise OutputError or InputError before it starts."""
    recorded = record(
        command,
        out or default_path(),
        Options(
            is_light=True,
            force=force,
            job_key=key_of_nodes(command, os.environ),
            variables={Variable.LOADER_STAGES: "1"},
        ),
        shown_command=masked_command(command),
        sampler=[sys.executable, "-m", "flatout.probe.sampler"],
    )
    profile = loading_of(read_recording(recorded.path)) if recorded.is_first else None
    return ProfiledLoading(profile=profile, ended=recorded.ended)


def loading_of(recording: Recording) -> LoadingProfile:
    """Return the loaders of a recorded job, with what the counters of the file systems say about their waits."""
    profile = loading_profile(recording)
    hosts, problems = _storage_of(Path(recording.path))
    verdicts = [verdict for host in hosts for verdict in _verdicts(profile, host)]
    profile = with_storage(profile, verdicts, hosts)
    return msgspec.structs.replace(profile, problems=(*profile.problems, *problems))


def _storage_of(folder: Path) -> tuple[list[HostStorage], list[str]]:
    """Return the use of the file systems by host, and one problem for each file that cannot be read."""
    hosts, problems = [], []
    for path in sorted(folder.glob(File.STORAGE.glob)):
        hostname = str(File.STORAGE.part(path.name))
        try:
            content = read_snapshots(path, hostname)
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {(error.strerror or str(error)).lower()}")
            continue
        if content.num_bad > 1:  # the last line of a sampler that was killed can be cut
            problems.append(f"{path.name} has {content.num_bad} damaged lines")
        hosts.append(host_storage(content))
    return hosts, problems


def _verdicts(profile: LoadingProfile, host: HostStorage) -> list[StorageVerdict]:
    """Return what limits each mount that the ranks of a host read from."""
    mounts = {mount.folder: mount for mount in host.mounts}
    reads = JobReads(
        waiting_s=waiting_s(profile, host.hostname),
        data_bytes=data_bytes(profile),
        device_bytes=device_bytes(profile, host.hostname),
        read_bytes=read_bytes(profile, host.hostname),
    )
    folders = mounts_of(profile, host.hostname)
    return [storage_verdict(host, mounts[folder], reads) for folder in folders if folder in mounts]


def read_loading(folder: Path) -> LoadingProfile:
    """Return the profile of a folder that `flatout data profile` recorded. Raise InputError if it is none."""
    if not is_recording(folder):
        raise InputError(f"`{folder}` is not a recording", hint="record one: flatout data profile -- COMMAND")
    profile = loading_of(read_recording(folder))
    has_reports = bool(profile.ranks or profile.problems or any(folder.rglob(File.STAGES.glob)))
    if not has_reports:
        raise InputError(
            f"`{folder}` has no stages of batches", hint="record the job with: flatout data profile -- COMMAND"
        )
    return profile
