"""Checks of the storage from which data is read and to which checkpoints are written."""

from __future__ import annotations

import re
from typing import NamedTuple

from flatout.doctor.check import check, fail, info, named, need, none_in_log, ok, warn, with_missing
from flatout.doctor.log_lines import judge_log
from flatout.doctor.lspci_tree import lspci_kind
from flatout.doctor.machine import Machine
from flatout.doctor.outcome import CheckOutcome
from flatout.doctor.pcie_links import LinkComparison
from flatout.doctor.sysfs_tree import pci_kind, sysfs_link
from flatout.doctor.unknown import NotHereError, NotReadError
from flatout.records.doctor import PcieLink

_NETWORK = re.compile(r"nfs\d?|lustre|cifs|smb3|ceph|gpfs|beegfs|fuse\..*|9p|virtiofs|glusterfs|wekafs|afs")
_DISK = re.compile(r"nvme|sd|vd|xvd|md|dm-")
_KERNEL = "Linux kernel documentation"
_KIB_PER_GIB = 1 << 20


class _FileSystem(NamedTuple):
    device: str
    size: int  # KiB, or inodes
    free: int
    path: str


def _file_systems(machine: Machine, command: str) -> list[_FileSystem]:
    """Read the rows of `df -P`, each once; a row without numbers (`-`) is skipped."""
    rows: dict[_FileSystem, None] = {}
    for line in machine.output(command).splitlines()[1:]:
        words = line.split()
        if len(words) >= 6 and words[1].isdecimal() and words[3].isdecimal():
            rows[_FileSystem(words[0], int(words[1]), int(words[3]), " ".join(words[5:]))] = None
    need(list(rows), f"`{command}` lists no file system")
    return list(rows)


def _named_free(rows: list[_FileSystem]) -> str:
    return named(f"{row.path}: {row.free / row.size:.0%} free" for row in rows)


@check(
    "storage-free-space",
    "storage",
    topic="free disk space",
    read="`df -P -k` of the working folder, /tmp and --data",
    expected="at least 15 % free; below 1 GiB is a fault",
    source="proposed by Flatout, uncalibrated",
    cost="a checkpoint that cannot be written ends the job; nearly full disks are slow",
    fix="remove old checkpoints and caches (~/.cache, /tmp)",
    when_wrong="user quotas are not checked",
)
def free_space(machine: Machine) -> CheckOutcome:
    rows = [row for row in _file_systems(machine, "df -P -k") if row.path != "/dev/shm" and row.size]
    need(rows, "`df -P -k` lists no file system with a size")
    full = [f"{row.path}: {row.free / _KIB_PER_GIB:.1f} GiB" for row in rows if row.free < _KIB_PER_GIB]
    if full:
        return fail(f"disks are almost full: {named(full)}")
    low = [row for row in rows if row.free < 0.15 * row.size]
    if low:
        shown = named(f"{row.path}: {row.free / row.size:.0%} of {row.size / _KIB_PER_GIB:.0f} GiB" for row in low)
        return warn(f"little disk space is free: {shown}")
    return ok(_named_free(rows))


@check(
    "storage-inodes",
    "storage",
    topic="free inodes",
    read="`df -P -i` of the working folder, /tmp and --data",
    expected="at least 5 % free",
    source="proposed by Flatout, uncalibrated",
    cost="`No space left on device` with space left",
    fix="pack small files into shards; remove caches",
    when_wrong="file systems that create inodes on demand show 0 of 0 and are skipped",
)
def inodes(machine: Machine) -> CheckOutcome:
    rows = [row for row in _file_systems(machine, "df -P -i") if row.size]
    if not rows:
        raise NotHereError("these file systems create inodes on demand")
    low = [f"{row.path}: {row.free / row.size:.0%}" for row in rows if row.free < 0.05 * row.size]
    if low:
        return warn(f"few inodes are left: {named(low)}")
    return ok(_named_free(rows))


@check(
    "storage-mount-kind",
    "storage",
    topic="file systems for data and checkpoints",
    read="`df -P -k` and /proc/mounts",
    expected="a local or parallel file system; overlay only for code",
    source="proposed by Flatout",
    cost="small random reads on a network file system cost milliseconds each; overlay copies on write",
    fix="use shards of at least 100 MB, a copy on a local disk, or more workers",
    when_wrong="the network file system is fast; `flatout profile` shows whether the data loader waits",
)
def mount_kind(machine: Machine) -> CheckOutcome:
    mounts = {mount.path: mount.kind for mount in machine.mounts}
    paths = [row.path for row in _file_systems(machine, "df -P -k") if row.path != "/dev/shm"]
    kinds = {path: mounts[path] for path in paths if path in mounts}
    need(list(kinds), "the mounts of `df` are not in /proc/mounts")
    shown = named(f"{path}: {kind}" for path, kind in kinds.items())
    if any(_NETWORK.fullmatch(kind) for kind in kinds.values()):
        return info(f"over the network: {shown}")
    return ok(shown)


@check(
    "storage-read-only",
    "storage",
    topic="file systems remounted read-only",
    read="kernel log: Remounting filesystem read-only; /proc/mounts",
    expected="none",
    source=_KERNEL,
    cost="checkpoints and logs cannot be written",
    fix="check the disk (`smartctl`) and the file system, and mount it again",
    when_wrong="none known: only remounts in the kernel log count, not deliberately read-only mounts",
)
def read_only(machine: Machine) -> CheckOutcome:
    lines = machine.kernel_log.lines["read_only"]
    if not lines:
        return none_in_log(machine)
    return fail(f"file systems were remounted read-only, {len(lines)} lines, the last: {lines[-1][:140]}")


@check(
    "storage-io-errors",
    "storage",
    topic="disk errors",
    read="kernel log: I/O error, EXT4-fs error, XFS corruption, nvme timeout",
    expected="none",
    source=_KERNEL,
    cost="reads are retried for seconds, or fail and end a data loader worker",
    fix="check the disk (`smartctl`, `nvme smart-log`), and replace it",
    when_wrong="the log can be days old; the disk was unplugged deliberately",
)
def io_errors(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "io_error", warn)


@check(
    "storage-nfs-hangs",
    "storage",
    topic="NFS server hangs",
    read="kernel log: nfs: server not responding",
    expected="none",
    source=_KERNEL,
    cost="every process that reads there stops until the server responds",
    fix="check the server and the network to it; read the data set from a local disk",
    when_wrong="the log can be days old",
)
def nfs_hangs(machine: Machine) -> CheckOutcome:
    return judge_log(machine, "nfs", warn)


@check(
    "storage-nvme-link",
    "storage",
    topic="PCIe links of the NVMe disks",
    read="sysfs: current_link_speed, current_link_width and their max of devices of class 0108, else `lspci -vvv`",
    expected="current = max",
    source="vendor: the maximum that the disk itself reports",
    cost="half the lanes or half the speed mean half the read bandwidth",
    fix="reseat the disk; use another slot",
    when_wrong="the disks are newer than their slots by choice: then all of them are alike",
)
def nvme_link(machine: Machine) -> CheckOutcome:
    links = _nvme_links(machine)
    if not links:
        if machine.bus_is_known:
            raise NotHereError("there is no NVMe disk on the bus")
        raise NotReadError("the input has no NVMe disk")
    compared = LinkComparison(links)
    if not compared.num_read:
        raise NotReadError(f"{len(links)} NVMe disks do not report their current and maximum link")
    below = compared.narrow | compared.slow
    shown = named(f"{disk}: {below[disk]}" for disk in links if disk in below)
    outcome = (
        warn(f"PCIe links of NVMe disks are below their maximum: {shown}")
        if below
        else ok(f"{compared.num_read} disks at full speed")
    )
    return with_missing(outcome, compared.num_missing, "disks reported no value")


def _nvme_links(machine: Machine) -> dict[str, PcieLink | None]:
    base = "/sys/bus/pci/devices"
    disks = {address for address in machine.pci_addresses if pci_kind(machine, address) == "storage"}
    # A copy of /sys can lack the class, but have the driver's folder.
    disks |= {address for address in machine.pci_addresses if machine.names(f"{base}/{address}/nvme")}
    if disks:
        return {address: sysfs_link(machine, address) for address in sorted(disks)}
    try:
        devices = machine.lspci
    except NotReadError:
        return {}
    return {device.address: device.link for device in devices if lspci_kind(device.kind, device.name) == "storage"}


@check(
    "storage-read-ahead",
    "storage",
    topic="read-ahead of the disks",
    read="sysfs: block/*/queue/read_ahead_kb",
    expected="at least 128 KiB",
    source=_KERNEL + ", block queue",
    cost="sequentially read shards are read in small pieces",
    fix="ask an administrator to run `blockdev --setra`",
    when_wrong="data that is read in random order gains nothing",
)
def read_ahead(machine: Machine) -> CheckOutcome:
    sizes = {}
    for path, kib in machine.matching("/sys/block/*/queue/read_ahead_kb").items():
        name = path.split("/")[3]
        if _DISK.match(name) and kib.isdecimal():
            sizes[name] = int(kib)
    need(list(sizes), "the input has no disk read-ahead sizes")
    small = [f"{name}: {size} KiB" for name, size in sizes.items() if size < 128]
    if small:
        return info(named(small))
    return ok(f"at least {min(sizes.values())} KiB on {len(sizes)} disks")
