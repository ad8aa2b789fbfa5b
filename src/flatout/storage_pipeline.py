"""The loaders of a recorded job, with what the counters of the hosts' file systems say about their waits.

Composes `loading` and `storage`, for `flatout data`, for the finding `data-loading` and for `flatout tune`.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.inside.protocol import File
from flatout.loading.profile import loading_profile
from flatout.loading.storage_causes import data_bytes, device_bytes, mounts_of, read_bytes, waiting_s, with_storage
from flatout.records.loading import LoadingProfile
from flatout.records.recording import Recording
from flatout.records.storage import HostStorage, StorageVerdict
from flatout.storage.snapshots import read_snapshots
from flatout.storage.use import host_storage
from flatout.storage.verdict import JobReads, storage_verdict


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
