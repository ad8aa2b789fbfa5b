"""Collect the input of `flatout doctor`: this machine, files about one machine, or several hosts.

Composes the probe that reads this machine, the readers of bundles and tools' outputs, and the launch of a capture on
other hosts. Nothing on a machine is changed, and nothing is printed except a progress line.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flatout.doctor.compare import compare_snapshots
from flatout.doctor.inputs import merge, read_bundle, read_inputs, read_log
from flatout.doctor.machine import BMC_SENSORS, NCCL_LOG
from flatout.doctor.secrets import without_secrets
from flatout.errors import InputError, UsageError
from flatout.launch.hosts import HostOutput, Via, host_names, on_hosts, way_to
from flatout.probe.redfish import read_redfish
from flatout.probe.redfish_client import RedfishClient, credentials
from flatout.probe.snapshot import read_machine
from flatout.records.doctor import HostsReport, JobTraffic
from flatout.records.snapshot import Output, Snapshot
from flatout.report.progress import WaitingLine

HOST_LIMIT_S = 120.0
_EXAMPLE = "flatout doctor --hosts a,b,c"


def read_snapshot(
    files: Sequence[Path],
    *,
    topology: Sequence[Path] = (),
    nccl_logs: Sequence[Path] = (),
    data: Path | None = None,
    redfish: str | None = None,
    redfish_credentials: Path | None = None,
) -> Snapshot:
    """Read `files` as one machine (without any: this machine), and add logs and topologies; without secrets.

    `data` is the folder of the training data, and `redfish` the address of the machine's BMC, whose user and password
    are in the environment or in `redfish_credentials`. Raises InputError for a file or a BMC that cannot be read.
    """
    if data is not None and not data.is_dir():
        raise InputError(f"`--data` must be a folder, but `{data}` is not")
    if files:
        snapshot = read_inputs(files)
    else:
        with WaitingLine("reading this machine"):
            snapshot = read_machine(data=str(data) if data is not None else None)
    read_from = snapshot.read_from
    for path in nccl_logs:
        snapshot = merge(snapshot, Snapshot(outputs={NCCL_LOG: read_log(path)}))
    if topology:
        snapshot = merge(snapshot, read_inputs(topology))
    if redfish is not None:
        sensors = read_redfish(RedfishClient(redfish, credentials(redfish_credentials)))
        text = msgspec.json.encode(sensors).decode()
        snapshot = merge(snapshot, Snapshot(outputs={BMC_SENSORS: Output(text=text)}))
    added = tuple(str(path) for path in (*nccl_logs, *topology))
    return without_secrets(msgspec.structs.replace(snapshot, read_from=(*read_from, *added)))


def job_times(recording: Path) -> JobTraffic:
    """Return the times of a job's traffic from its recording or traces. Raises InputError if they cannot be read."""
    from flatout.diagnosis_pipeline import diagnose_paths  # numpy and all readers, which a check alone does not need

    with WaitingLine("reading the job's recording"):
        diagnosed = diagnose_paths([recording])
    diagnosis = diagnosed.diagnosis
    job = diagnosis.job
    names = {timeline.meta.hostname for timeline in diagnosed.job.timelines if timeline.meta.hostname}
    hosts = tuple(sorted(names)) if isinstance(job.hosts, msgspec.UnsetType) else job.hosts
    is_every_host_known = len(hosts) > 1 or not job.missing_ranks
    steps_of_ranks = [rank.steps for rank in diagnosis.ranks if rank.steps]

    def most_per_step(*parts: str) -> float:
        """Return the seconds per step in these parts, on the rank that has the most."""
        sums = [sum(step.parts_s[part] for step in steps for part in parts) / len(steps) for steps in steps_of_ranks]
        return max(sums, default=0.0)

    return JobTraffic(
        hosts=hosts,
        num_hosts=len(hosts) if hosts and is_every_host_known else None,
        has_gpu=any(timeline.has_gpu for timeline in diagnosed.job.timelines),
        step_s=job.step_s if steps_of_ranks else None,
        copies_s=most_per_step("memory_copy"),
        transfer_s=most_per_step("transfer", "communication_unsplit"),
    )


def compare_hosts(bundles: Sequence[Path], *, via: str | None = None, flatout: str | None = None) -> HostsReport:
    """Compare the hosts of the bundles, or capture now and compare the hosts that are named instead of bundles.

    `via` is srun or ssh, and `flatout` the command of Flatout there; both are only for named hosts. Raises UsageError
    for fewer than two hosts, InputError if fewer than two could be read.
    """
    are_bundles = not bundles or any(bundle.exists() or bundle.suffix == ".json" for bundle in bundles)
    if not are_bundles:
        snapshots, failed = _captured(",".join(map(str, bundles)), via, flatout)
    elif via or flatout:
        raise UsageError("`--via` and `--flatout` require host names", hint=_EXAMPLE)
    else:
        snapshots, failed = _read_bundles(bundles)
    report = compare_snapshots([without_secrets(snapshot) for snapshot in snapshots])
    return msgspec.structs.replace(report, not_captured=failed)


def _read_bundles(bundles: Sequence[Path]) -> tuple[list[Snapshot], dict[str, str]]:
    """Read each bundle; also return why any cannot be read: a truncated bundle does not stop the comparison."""
    paths = _bundle_files(bundles)
    if len(paths) < 2:
        raise UsageError(
            f"`--hosts` needs the bundles of at least 2 hosts, but got {len(paths)}",
            hint=f"name the hosts: {_EXAMPLE}; or on each host: flatout doctor --capture $(hostname).json",
        )
    snapshots: list[Snapshot] = []
    errors: dict[str, InputError] = {}
    for path in paths:
        try:
            snapshots.append(read_inputs([path]))
        except InputError as error:
            errors[str(path)] = error
    if len(snapshots) < 2:
        raise next(iter(errors.values()))
    return snapshots, {path: str(error) for path, error in errors.items()}


def _bundle_files(bundles: Sequence[Path]) -> list[Path]:
    """Return the files, including those in folders, each once."""
    files: dict[str, Path] = {}
    for bundle in bundles:
        for path in sorted(bundle.glob("*.json")) if bundle.is_dir() else [bundle]:
            files[os.path.realpath(path)] = path  # `Path.resolve` raises for a link to itself
    return list(files.values())


def _captured(names: str, via: str | None, flatout: str | None) -> tuple[list[Snapshot], dict[str, str]]:
    """Capture each host now; also return why any host gave no bundle."""
    hosts = host_names(names)
    if len(hosts) < 2:
        raise UsageError(
            f"`--hosts` needs at least 2 hosts, but got {names}", hint="to check this one alone: flatout doctor"
        )
    way = _way_to(hosts, via)
    with WaitingLine(f"capturing {len(hosts)} hosts through {way}"):
        outputs = on_hosts(
            hosts, [*_flatout_command(flatout), "doctor", "--capture", "-"], via=way, limit_s=HOST_LIMIT_S
        )
    snapshots, failed = _decoded(outputs)
    if len(snapshots) < 2:
        reasons = "; ".join(f"{host}: {reason}" for host, reason in list(failed.items())[:3])
        raise InputError(
            f"at least 2 hosts must answer through {way}, and {len(snapshots)} did: {reasons}",
            hint="pass --flatout COMMAND if Flatout has a different path on the hosts, or try another --via",
        )
    return snapshots, failed


def _way_to(hosts: Sequence[str], via: str | None) -> Via:
    match via:
        case None:
            return way_to(hosts)
        case "srun" | "ssh":
            return via
    raise UsageError(f"`--via` must be srun or ssh, but got {via}")


def _flatout_command(text: str | None) -> list[str]:
    if not text:
        return [sys.executable, "-m", "flatout"]
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UsageError(f"`--flatout` is not a valid command: {str(error).lower()}: {text}") from error


def _decoded(outputs: Mapping[str, HostOutput]) -> tuple[list[Snapshot], dict[str, str]]:
    snapshots: list[Snapshot] = []
    failed: dict[str, str] = {}
    for host, output in outputs.items():
        if output.data is None:
            failed[host] = output.problem
            continue
        try:
            snapshots.append(read_bundle(output.data, host))
        except InputError as error:
            failed[host] = str(error)
    return snapshots, failed
