"""Where data is read and checkpoints are written."""

from __future__ import annotations

import re

from flatout.doctor.check import CheckOutcome, check, fail, info, named, need, none_in_log, ok, warn, with_missing
from flatout.doctor.graph import lspci_kind, pci_kind, sysfs_link
from flatout.doctor.machine import Machine
from flatout.doctor.unknown import NotHereError, NotReadError
from flatout.records.doctor import PcieLink

_NETWORK = re.compile(r"nfs\d?|lustre|cifs|smb3|ceph|gpfs|beegfs|fuse\..*|9p|virtiofs|glusterfs|wekafs|afs")
_KERNEL = "Linux kernel documentation"


def _df(machine: Machine, name: str) -> list[tuple[str, int, int, str]]:
    """Rows of `df -P`: device, all, available, path. What is not a number (`-`) is left out."""
    rows = []
    for line in machine.output(name).splitlines()[1:]:
        words = line.split()
        if len(words) >= 6 and words[1].isdecimal() and words[3].isdecimal():
            rows.append((words[0], int(words[1]), int(words[3]), " ".join(words[5:])))
    need(rows, f"`{name}` gives no row")
    return list(dict.fromkeys(rows))


@check(
    "storage-free-space",
    "storage",
    title="there is room for checkpoints and caches",
    read="`df -P -k` of the working folder, /tmp and --data",
    expected="at least 15 % free; below 1 GiB is a fault",
    source="proposal of this project, uncalibrated",
    cost="a checkpoint that cannot be written ends the job; full disks are slow before that",
    fix="remove old checkpoints and caches (~/.cache, /tmp)",
    when_wrong="quotas of users are not seen here",
)
def free_space(machine: Machine) -> CheckOutcome:
    rows = [row for row in _df(machine, "df -P -k") if row[3] != "/dev/shm" and row[1]]
    need(rows, "`df -P -k` gives no file system with a size")
    full = [f"{path}: {free / (1 << 20):.1f} GiB" for _, _, free, path in rows if free < 1 << 20]
    low = [
        f"{path}: {free / size:.0%} of {size / (1 << 20):.0f} GiB" for _, size, free, path in rows if free < 0.15 * size
    ]
    if full:
        return fail(f"almost full: {named(full)}")
    if low:
        return warn(f"little is free: {named(low)}")
    return ok(named(f"{path}: {free / size:.0%} free" for _, size, free, path in rows))


@check(
    "storage-inodes",
    "storage",
    title="there is room for more files",
    read="`df -P -i` of the working folder, /tmp and --data",
    expected="at least 5 % free",
    source="proposal of this project, uncalibrated",
    cost="`No space left on device` with space left",
    fix="pack small files into shards; remove caches",
    when_wrong="file systems that make inodes as needed show 0 of 0, and are left out",
)
def inodes(machine: Machine) -> CheckOutcome:
    rows = [row for row in _df(machine, "df -P -i") if row[1]]
    if not rows:
        raise NotHereError("these file systems make inodes as needed")
    low = [f"{path}: {free / size:.0%}" for _, size, free, path in rows if free < 0.05 * size]
    return (
        warn(f"few are left: {named(low)}")
        if low
        else ok(named(f"{path}: {free / size:.0%} free" for _, size, free, path in rows))
    )


@check(
    "storage-mount-kind",
    "storage",
    title="what kind of file system the data and checkpoints are on",
    read="`df -P -k` and /proc/mounts",
    expected="local, or a parallel file system; overlay only for code",
    source="proposal of this project",
    cost="small random reads on a network file system cost milliseconds each; overlay copies on write",
    fix="shards of 100 MB and more, a copy on a local disk, or more workers",
    when_wrong="a fast network file system; `flatout profile` shows whether the loader waits",
)
def mount_kind(machine: Machine) -> CheckOutcome:
    kinds = {mount.path: mount.kind for mount in machine.mounts}
    rows = [row for row in _df(machine, "df -P -k") if row[3] != "/dev/shm"]
    found = {path: kinds[path] for *_, path in rows if path in kinds}
    need(list(found), "the mounts of `df` are not in /proc/mounts")
    shown = named(f"{path}: {kind}" for path, kind in found.items())
    network = [path for path, kind in found.items() if _NETWORK.fullmatch(kind)]
    return info(f"over the network: {shown}") if network else ok(shown)


@check(
    "storage-read-only",
    "storage",
    title="no file system became read-only",
    read="kernel log: Remounting filesystem read-only; /proc/mounts",
    expected="none",
    source=_KERNEL,
    cost="checkpoints and logs cannot be written",
    fix="look at the disk (`smartctl`), check the file system, and mount it again",
    when_wrong="mounts that are read-only on purpose are not counted, only those of the kernel log",
)
def read_only(machine: Machine) -> CheckOutcome:
    lines = machine.kernel_log.lines["read_only"]
    return fail(f"{len(lines)} times: {lines[-1][:140]}") if lines else none_in_log(machine)


@check(
    "storage-io-errors",
    "storage",
    title="the disks report no error",
    read="kernel log: I/O error, EXT4-fs error, XFS corruption, nvme timeout",
    expected="none",
    source=_KERNEL,
    cost="reads are repeated for seconds, or fail: a loader's worker dies",
    fix="look at the disk (`smartctl`, `nvme smart-log`), and replace it",
    when_wrong="the log may be days old; a disk that was unplugged on purpose",
)
def io_errors(machine: Machine) -> CheckOutcome:
    lines = machine.kernel_log.lines["io_error"]
    return warn(f"{len(lines)} lines, the last: {lines[-1][:140]}") if lines else none_in_log(machine)


@check(
    "storage-nfs-hangs",
    "storage",
    title="NFS servers answer",
    read="kernel log: nfs: server not responding",
    expected="none",
    source=_KERNEL,
    cost="every process that reads there stands still until the server answers",
    fix="look at the server and the network to it; read the data set from a local disk",
    when_wrong="the log may be days old",
)
def nfs_hangs(machine: Machine) -> CheckOutcome:
    lines = machine.kernel_log.lines["nfs"]
    return warn(f"{len(lines)} lines, the last: {lines[-1][:140]}") if lines else none_in_log(machine)


@check(
    "storage-nvme-link",
    "storage",
    title="NVMe disks have their full PCIe link",
    read="sysfs: current_link_speed, current_link_width and their max of devices of class 0108, else `lspci -vvv`",
    expected="current = max",
    source="vendor: what the disk itself says it can",
    cost="half the lanes or half the speed are half the read bandwidth",
    fix="reseat the disk; another slot",
    when_wrong="disks of a newer generation than the slot, as bought: then alike on all",
)
def nvme_link(machine: Machine) -> CheckOutcome:
    links = _nvme_links(machine)
    if not links:
        if machine.bus_is_known:
            raise NotHereError("there is no NVMe disk on the bus")
        raise NotReadError("no NVMe disk is in what was read")
    slow, num_read = [], 0
    for address, link in links.items():
        if link is None or link.width is None or link.max_width is None:
            continue
        if link.width < link.max_width:
            slow.append(f"{address}: x{link.width} of x{link.max_width}")
        elif link.speed_gt_per_s is None or link.max_speed_gt_per_s is None:
            continue
        elif link.speed_gt_per_s < link.max_speed_gt_per_s:
            slow.append(f"{address}: {link.speed_gt_per_s:g} of {link.max_speed_gt_per_s:g} GT/s")
        num_read += 1
    if not num_read:
        raise NotReadError(f"{len(links)} NVMe disks give no link now and at most")
    outcome = warn(f"below what they can: {named(slow)}") if slow else ok(f"{num_read} disks at full speed")
    return with_missing(outcome, len(links) - num_read, "disks did not say")


def _nvme_links(machine: Machine) -> dict[str, PcieLink | None]:
    base = "/sys/bus/pci/devices"
    disks = {address for address in machine.pci_addresses if pci_kind(machine, address) == "storage"}
    # A tree may lack the class, but name the driver's folder.
    disks |= {address for address in machine.pci_addresses if machine.names(f"{base}/{address}/nvme")}
    if disks:
        return {address: sysfs_link(machine, address) for address in sorted(disks)}
    try:
        return {d.address: d.link for d in machine.lspci if lspci_kind(d.kind, d.name) == "storage"}
    except NotReadError:
        return {}


@check(
    "storage-read-ahead",
    "storage",
    title="disks read ahead",
    read="sysfs: block/*/queue/read_ahead_kb",
    expected="at least 128 KiB",
    source=_KERNEL + ", block queue",
    cost="sequential shards are read in small pieces",
    fix="an administrator sets `blockdev --setra`",
    when_wrong="data that is read at random gains nothing",
)
def read_ahead(machine: Machine) -> CheckOutcome:
    found = {
        path.split("/")[3]: int(text)
        for path, text in machine.matching("/sys/block/*/queue/read_ahead_kb").items()
        if re.match(r"(?:nvme|sd|vd|xvd|md|dm-)", path.split("/")[3]) and text.isdecimal()
    }
    need(list(found), "no disk's read-ahead was read")
    small = [f"{name}: {value} KiB" for name, value in found.items() if value < 128]
    return info(named(small)) if small else ok(f"at least {min(found.values())} KiB on {len(found)} disks")
